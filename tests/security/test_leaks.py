"""Nothing is left behind by callers that go away: no task, no slot, no memory. A small form, and a long one to soak."""

import asyncio
import contextlib
import gc
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2
from tidegate_server.core.model import SECOND

from tests.e2e import processes
from tests.integration.server.harness import Served, health, serving, until
from tests.security.serving import BINDABLE, ROUTE

AT_ONCE = 20
WARM_UP = 500
SMALL = 20 << 20
"""Bytes that the process may grow by after warming up, however long it goes on: caches and fragments, no leak."""


def memory(pid: int | str = "self") -> int:
    """Bytes of a process in memory; this one's without what is only not collected yet."""
    gc.collect()
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def repeated(once: Callable[[int], Awaitable[None]], times: int) -> None:
    """Do it so many times, several at once."""
    for first in range(0, times, AT_ONCE):
        await asyncio.gather(*(once(number) for number in range(first, min(first + AT_ONCE, times))))


async def assert_nothing_left(server: Served, once: Callable[[int], Awaitable[None]], times: int) -> None:
    """After warming up neither tasks nor memory grow with `times`."""
    await repeated(once, max(times // 5, WARM_UP))
    guard = server.application.guard
    await until(lambda: guard.running == 0 and guard.open_calls.count == 0 and server.sessions == 0)
    tasks, before = len(asyncio.all_tasks()), memory()
    await repeated(once, times)
    await until(lambda: guard.running == 0 and guard.open_calls.count == 0 and server.sessions == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    assert server.waiting == 0
    assert guard.streams == 0
    assert memory() - before < SMALL


async def feed_and_leave(server: Served, number: int) -> None:
    """Open a feed, send a batch, go away: closing well, or not."""
    call: Any = server.admission.CapacityFeed(metadata=server.metadata)
    hello = wire.Hello(collector_id=f"c{number}", providers=["qwen"], can_refresh=True)
    await call.write(wire.CapacityFeedRequest(hello=hello))
    await call.read()
    batch = wire.Batch(sequence=1, observations=[health()])
    await call.write(wire.CapacityFeedRequest(batch=batch))
    if number % 3:
        assert (await call.read()).ack.sequence == 1
    if number % 2:
        call.cancel()
    else:
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass


async def call_and_leave(server: Served, number: int) -> None:
    """Ask, and go away at some point of the way."""
    request = wire.AdmitRequest(model=ROUTE, worker_id=f"w{number % 50}", request_bytes=1)
    begun = server.application.guard.open_calls.begun
    call: Any = server.admission.Admit(request)
    if number % 4:  # else it may not even have been sent
        await until(lambda: server.application.guard.open_calls.begun > begun or call.done())
    for _ in range(random.Random(number).randrange(12)):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([asyncio.ensure_future(call.code())])


@pytest.mark.parametrize("times", [600, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_feeds_that_come_and_go(tmp_path: Path, times: int) -> None:
    async with serving(tmp_path) as server:
        await assert_nothing_left(server, lambda number: feed_and_leave(server, number), times)


async def test_calls_that_are_cancelled_anywhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.report(health())
        await assert_nothing_left(server, lambda number: call_and_leave(server, number), 2_000)
        assert (await server.admit()).verdict == types_pb2.VERDICT_ADMITTED


@pytest.mark.soak
async def test_the_memory_of_a_server_whose_callers_cancel(tmp_path: Path) -> None:
    """The server alone, since grpc's client for asyncio keeps about 1 KB of every call that is cancelled."""
    source = random.Random(1)
    body = wire.AdmitRequest(model=BINDABLE, worker_id="w", request_bytes=1).SerializeToString()

    async def once(_: int) -> None:
        call: Any = admit(body)
        with contextlib.suppress(TimeoutError):  # cut at any point of the way there and back
            await asyncio.wait_for(asyncio.shield(call.code()), source.random() * 0.005)
        call.cancel()
        await asyncio.wait([asyncio.ensure_future(call.code())])

    with processes.served(processes.write(tmp_path)) as server:
        async with grpc.aio.insecure_channel(server.address) as channel:
            admit: Any = channel.unary_unary("/tidegate.v1.AdmissionService/Admit")
            await repeated(once, 20_000)
            before = memory(server.pid)
            await repeated(once, 100_000)
            assert memory(server.pid) - before < SMALL
            assert await admit(body)


@pytest.mark.parametrize("times", [300, pytest.param(20_000, marks=pytest.mark.soak)])
async def test_calls_that_are_cancelled_in_the_cold_wait(tmp_path: Path, times: int) -> None:
    async def once(number: int) -> None:
        request = wire.AdmitRequest(model=ROUTE, worker_id=f"w{number}", request_bytes=1)
        call: Any = server.admission.Admit(request, timeout=0.001 if number % 2 else None)
        waits = server.application.cold_wait.waits
        if number % 2 == 0:
            await until(lambda: server.application.cold_wait.waits > waits or call.done())
        call.cancel()
        await asyncio.wait([asyncio.ensure_future(call.code())])

    async with serving(tmp_path) as server:
        await server.fake.advance(3 * SECOND)
        collector = server.collector("waited for", "qwen")
        await collector.connect()
        reading = asyncio.ensure_future(_read_on(collector))
        await repeated(once, times // 5)
        before = memory()
        await repeated(once, times)
        await until(lambda: server.waiting == 0 and server.application.guard.running == 0)
        assert memory() - before < SMALL
        await collector.__aexit__()
        await asyncio.wait([reading])


async def _read_on(collector: Any) -> None:
    try:
        while True:
            await collector.hear()
    except (AssertionError, TimeoutError, asyncio.CancelledError, grpc.aio.AioRpcError):
        return
