"""Pings of clients: one that is idle lives, one that pings all the time is cut.

Here real time passes, since the timers are those of gRPC itself; the test of three minutes runs by `make soak`.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tidegate_server.wiring import listeners

from tests.conformance.clients import GO_CLIENT, NODE_CLIENT, Kind, started
from tests.gateways.http2 import ENHANCE_YOUR_CALM, ping, relay
from tests.gateways.processes import tidegate
from tests.gateways.test_connections import CONFIG, REQUEST
from tests.support import drivers


async def test_a_pinger_every_100_ms_is_cut(tmp_path: Path) -> None:
    with tidegate(CONFIG, tmp_path) as server:
        answered, error = await ping(server.address, 0.1, 50)
    assert error == ENHANCE_YOUR_CALM
    assert answered <= 4


@pytest.mark.parametrize(("interval", "cut"), [(0.1, False), (0.005, True)])
async def test_the_shortest_interval_is_the_line(
    interval: float, cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the server's shortest interval at 50 ms: twice of it lives, a tenth is cut."""
    monkeypatch.setattr(listeners, "SHORTEST_PING_MS", 50)
    async with AsyncExitStack() as stack:
        server = await drivers.Server.start(CONFIG, tmp_path, stack)
        answered, error = await ping(str(server._running.addresses[0]), interval, 30)
    assert (error == ENHANCE_YOUR_CALM) is cut
    assert (answered == 30) is not cut


@pytest.mark.soak
@pytest.mark.parametrize("kind", [GO_CLIENT, NODE_CLIENT], ids=str)
async def test_an_idle_client_that_pings_every_10_s_lives(kind: Kind, tmp_path: Path) -> None:
    """With the client library, which skips a ping where the server's own has just come, and to the letter beside it."""
    with tidegate(CONFIG, tmp_path) as server:
        strict = asyncio.create_task(ping(server.address, 10, 18))
        async with relay(server.address) as seen, started(kind, seen.address, tmp_path) as runner:
            assert (await runner.ask("admit", request=REQUEST, timeout=5))["forward"]
            assert await strict == (18, None)
            assert (await runner.ask("admit", request=REQUEST, timeout=5))["forward"]
            assert seen.connections == 1
            assert not seen.errors
            assert seen.pings > 2
