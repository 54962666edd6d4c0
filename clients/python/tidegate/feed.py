"""The capacity feed as an object: send messages, iterate over what the server says (§6 of the contract)."""

from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self

import grpc
from grpc import aio

from tidegate.errors import from_rpc_error
from tidegate.v1 import admission_pb2, types_pb2

_Stream = aio.StreamStreamCall[admission_pb2.CapacityFeedRequest, admission_pb2.CapacityFeedResponse]


class Feed:
    """One open feed. Entering it says `hello`; every method raises TidegateError once the stream has ended.

    A feed does not reconnect by itself: what is to be sent again, and how old it is by then, only its owner knows.
    """

    def __init__(self, stream: _Stream, hello: admission_pb2.Hello) -> None:
        self._stream = stream
        self._hello = hello

    async def __aenter__(self) -> Self:
        await self._write(admission_pb2.CapacityFeedRequest(hello=self._hello))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.cancel()

    async def __aiter__(self) -> AsyncIterator[admission_pb2.CapacityFeedResponse]:
        """Yield `welcome`, `ack` and `refresh` messages until the server ends the stream well."""
        try:
            async for message in self._stream:
                yield message
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None

    async def send(self, sequence: int, observations: Iterable[types_pb2.Observation]) -> None:
        """Send one batch, at most 1 000 observations; the server acknowledges it under `sequence`."""
        batch = admission_pb2.Batch(sequence=sequence, observations=observations)
        await self._write(admission_pb2.CapacityFeedRequest(batch=batch))

    async def heartbeat(self) -> None:
        """Tell that this collector lives though it has nothing new."""
        await self._write(admission_pb2.CapacityFeedRequest(heartbeat=admission_pb2.Heartbeat()))

    async def retract(self, retract: admission_pb2.Retract) -> None:
        """Take back at once what this collector gave."""
        await self._write(admission_pb2.CapacityFeedRequest(retract=retract))

    async def refreshed(self, refresh_id: int, failed_providers: Iterable[str] = ()) -> None:
        """End the answer to a refresh: for `failed_providers` nobody need wait any longer."""
        result = admission_pb2.RefreshResult(refresh_id=refresh_id, failed_providers=failed_providers)
        await self._write(admission_pb2.CapacityFeedRequest(refresh_result=result))

    async def _write(self, message: admission_pb2.CapacityFeedRequest) -> None:
        try:
            await self._stream.write(message)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
