"""A server with identities of every role, by token or by certificate, and what is asked of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate_server.config import ConfigurationSource
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import Running, start

from tests.integration.server.harness import CONFIG, Json, identity, write

ROLES = ("gateway", "collector", "operator", "viewer")

IDENTITIES = [
    identity("gateway", "gateway", startFlows=True),
    identity("collector", "collector", providers=["qwen"]),
    identity("operator", "operator"),
    identity("viewer", "viewer"),
]
"""One per role; the token is the role's name and `-token`."""

ROUTE = "managed/local"
"""Its one candidate is `qwen/qwen-next`."""

BINDABLE = "qwen/qwen-next"
"""Answered without facts: a model that is bound directly."""


@asynccontextmanager
async def running(directory: Path, config: Json = CONFIG, **settings: Any) -> AsyncIterator[Running]:
    """A server on the machine's clock."""
    source = ConfigurationSource(write(directory, config, **settings), {})
    async with AsyncExitStack() as stack:
        yield await start(source, SystemClock(), stack)


def address(server: Running) -> str:
    """Where it listens."""
    return str(server.addresses[0])


async def ends(call: Any) -> str:
    """The name of the status that a unary call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def catalog(channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]] = ()) -> str:
    """How a call that every identity may make ends."""
    stub: rpc.AdmissionServiceAsyncStub = rpc.AdmissionServiceStub(channel)
    return await ends(stub.Catalog(wire.CatalogRequest(), metadata=metadata, timeout=10))
