"""Requests of Envoy take places of their own: many at once starve no collector, and too many are told so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as rpc
from tidegate_server.config import ConfigurationSource
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import start

from tests.gateways.envoy_proxy.support import example
from tests.support.drivers import write

PLACES = 3


async def unfinished() -> AsyncIterator[wire.ProcessingRequest]:
    """The headers of a request whose body does not come."""
    yield wire.ProcessingRequest(request_headers=wire.HttpHeaders())
    await asyncio.Event().wait()


async def test_requests_take_no_place_of_feeds_and_are_bounded_like_calls(tmp_path: Path) -> None:
    own = {"listen": "127.0.0.1:0", "stateDirectory": str(tmp_path / "state"), "admin": {"listen": "127.0.0.1:0"}}
    config = {**example("tidegate.yaml"), **own, "limits": {"maxConcurrentCalls": PLACES}}
    async with AsyncExitStack() as stack:
        running = await start(ConfigurationSource(write(config, tmp_path), {}), SystemClock(), stack)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(str(running.addresses[0])))
        stub = rpc.ExternalProcessorStub(channel)
        calls: list[Any] = [stub.Process(unfinished()) for _ in range(PLACES)]
        for call in calls:
            stack.callback(call.cancel)
            assert (await call.read()).HasField("request_headers")
        assert running.application.guard.streams == 0
        with pytest.raises(grpc.aio.AioRpcError) as shed:
            await stub.Process(unfinished()).read()
        assert shed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        while running.application.guard.request_streams == PLACES:
            await asyncio.sleep(0)
        again = stub.Process(unfinished())
        stack.callback(again.cancel)
        assert (await again.read()).HasField("request_headers")
