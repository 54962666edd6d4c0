"""A collector's stream: hello, then batches; each is acknowledged, and refreshes are asked for in between (§6)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeAlias

from tidegate.v1 import admission_pb2 as wire

from tidegate_server.core.model import SECOND, Caller, Nanos
from tidegate_server.core.requests import id_fault
from tidegate_server.errors import FieldViolation, InvalidRequest, ProviderNotAllowed
from tidegate_server.ports import Clock
from tidegate_server.rpc.fact_mapping import duration, nanos_of, observation_of, timestamp
from tidegate_server.rpc.open_calls import CutOff, is_cancelled
from tidegate_server.usecases.deadlines import within
from tidegate_server.usecases.feeds import Feeds, Session
from tidegate_server.usecases.report import Report, Retraction, Told

MAX_BATCH_BYTES = 1024 * 1024
"""The largest batch (§6)."""

HELLO_WITHIN: Nanos = 10 * SECOND
"""How long a stream may be open before it says who it is."""

Requests: TypeAlias = AsyncIterator[wire.CapacityFeedRequest]
Said: TypeAlias = wire.CapacityFeedResponse | BaseException | None
"""What goes to the collector: a message; the error that ends the stream; None when it closed its own side."""


class FeedStreams:
    """Serves the streams of all collectors."""

    def __init__(self, feeds: Feeds, report: Report, clock: Clock) -> None:
        self._feeds = feeds
        self._report = report
        self._clock = clock

    async def serve(self, requests: Requests, caller: Caller) -> AsyncIterator[wire.CapacityFeedResponse]:
        """The answers to one stream, until either side ends it. A stream that never says hello times out."""
        session = await within(self._clock, HELLO_WITHIN, _session(requests, caller))
        self._feeds.open(session)
        said: asyncio.Queue[Said] = asyncio.Queue(maxsize=16)
        tasks = (
            asyncio.create_task(self._read(requests, session, said)),
            asyncio.create_task(self._ask(session, said)),
        )
        try:
            yield wire.CapacityFeedResponse(welcome=wire.Welcome(server_time=timestamp(self._clock.wall())))
            async for message in _until_ended(said, session):
                yield message
        finally:
            for task in tasks:
                task.cancel()
            self._feeds.close(session)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: Requests, session: Session, said: "asyncio.Queue[Said]") -> None:
        try:
            async for request in requests:
                if not session.is_live:
                    return  # replaced: what the old stream still says is ignored
                ack = await self._hear(request, session)
                if ack is not None:
                    await said.put(wire.CapacityFeedResponse(ack=ack))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            await said.put(CutOff())
        except Exception as error:  # noqa: BLE001 - handed to the stream, which ends with it
            await said.put(error)
        else:
            await said.put(None)

    async def _hear(self, request: wire.CapacityFeedRequest, session: Session) -> wire.Ack | None:
        """Do what one message asks; only a batch is acknowledged."""
        match request.WhichOneof("message"):
            case "batch":
                return await self._take(request.batch, session)
            case "retract":
                await self._report(session.caller, session.collector, (), retraction_of(request.retract))
            case "refresh_result":
                result = request.refresh_result
                self._feeds.answered(session, result.refresh_id, result.failed_providers)
            case "heartbeat":
                pass
            case "hello":
                raise InvalidRequest([FieldViolation("hello", "may only be the first message of the stream")])
            case _:
                raise InvalidRequest([FieldViolation("message", "is missing")])
        return None

    async def _take(self, batch: wire.Batch, session: Session) -> wire.Ack:
        check_batch_size(batch, "batch")
        observations = [observation_of(item, batch.sequence) for item in batch.observations]
        told = await self._report(session.caller, session.collector, observations, field="batch.observations")
        self._feeds.observed(session, (item.provider for item in observations))
        return wire.Ack(sequence=batch.sequence, results=item_results(told))

    async def _ask(self, session: Session, said: "asyncio.Queue[Said]") -> None:
        while True:
            asked = await session.asked.get()
            left = max(0, asked.until - self._clock.monotonic())
            refresh = wire.Refresh(refresh_id=asked.refresh_id, providers=asked.providers, deadline=duration(left))
            await said.put(wire.CapacityFeedResponse(refresh=refresh))


async def _session(requests: Requests, caller: Caller) -> Session:
    first = await anext(aiter(requests), None)
    if first is None or not first.HasField("hello"):
        raise InvalidRequest([FieldViolation("hello", "must be the first message of the stream")])
    hello = first.hello
    check_collector_id(hello.collector_id, "hello.collector_id")
    for provider in hello.providers:
        if caller.providers is not None and provider not in caller.providers:
            raise ProviderNotAllowed(provider)
    providers = frozenset(hello.providers)
    return Session(caller, hello.collector_id, providers, hello.can_refresh, nanos_of(hello.interval))


async def _until_ended(said: "asyncio.Queue[Said]", session: Session) -> AsyncIterator[wire.CapacityFeedResponse]:
    while True:
        get = asyncio.ensure_future(said.get())
        try:
            await asyncio.wait((get, session.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not get.done():
                get.cancel()
        message = session.ended.result() if not get.done() or get.cancelled() else get.result()
        if message is None:
            return
        if isinstance(message, BaseException):
            raise message
        yield message


def item_results(told: Sequence[Told]) -> list[wire.ItemResult]:
    """What became of each item of a batch."""
    return [
        wire.ItemResult(index=index, result=item.result.value, reason=item.reason)  # type: ignore[arg-type]
        for index, item in enumerate(told)
    ]


def retraction_of(message: wire.Retract) -> Retraction:
    """What a collector takes back."""
    return Retraction(tuple(message.providers), message.window, message.scope)


def check_batch_size(batch: wire.Batch | wire.ReportCapacityRequest, field: str) -> None:
    """Raises InvalidRequest, naming `field`, when a batch is over what one may hold in bytes."""
    if batch.ByteSize() > MAX_BATCH_BYTES:
        raise InvalidRequest([FieldViolation(field, "is over 1 MiB")])


def check_collector_id(collector_id: str, field: str) -> None:
    """Raises InvalidRequest, naming `field`, when this is no id."""
    if fault := id_fault(collector_id):
        raise InvalidRequest([FieldViolation(field, fault)])
