"""What a pinned Admit and a hop cost as everything around them grows: pins, facts, candidates, open feeds, flows.

Each size has a server of its own and the same hot set of a thousand workers; what is told is the server's processor
time for one call, as a multiple of that with the least of everything. Run by `python -m tests.bench growth`; with
TIDEGATE_BENCH_FULL=1 up to 10^7 pins and 10^6 flows, which takes an hour and some gigabytes.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

from tidegate import AsyncClient
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2 as types
from tidegate_server.core.decide import decide
from tidegate_server.core.facts import FactTable
from tidegate_server.core.model import SECOND, Balance, Health, HealthState, Request, Tier, Verdict
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.testing import fact

from tests.bench import calls, generator, pins, results, serving
from tests.bench.decide import NOW, microseconds
from tests.integration.pins.places import KEY

FULL = bool(os.environ.get("TIDEGATE_BENCH_FULL"))
PINS = (1_000, 100_000, 10_000_000 if FULL else 1_000_000)
FACTS = (10, 1_000, 100_000)
CANDIDATES = (2, 4, 8, 16, 32, 64)
FEEDS = (1, 100, 1_000)
FLOWS = (10, 10_000, 1_000_000 if FULL else 50_000)
ROUNDS = 3
AIM = 1.2

SPARE = 100
"""Providers that no route names, for facts that no decision reads."""


def config(directory: Path) -> serving.Json:
    """The usual one, with room for facts and feeds, and with a key that pins can be made under beforehand."""
    key = directory / "pins.key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    spare = {
        f"spare-{n}": {"kind": "subscription", "credential": f"env:KEY_{n}", "models": {"m": serving.MODEL}}
        for n in range(SPARE)
    }
    return {
        **serving.CONFIG,
        "keys": {"pins": str(key)},
        "providers": serving.CONFIG["providers"] | spare,
        "limits": {"maxFeeds": 2_000},
    }


def cost(server: serving.Server, directory: Path) -> float:
    """Microseconds of the server's own time for one pinned Admit."""
    calls.bind_workers(server)
    pinned = generator.write_requests(directory / "pinned", (calls.admit(f"w{n}") for n in range(calls.WORKERS)))
    return median(generator.run(server, calls.ADMIT, pinned).cpu for _ in range(ROUNDS))


def with_pins(count: int, server_directory: Path) -> float:
    """Beside so many pins of others."""
    pins.build(server_directory / "state", count)
    with serving.tidegate(server_directory, config(server_directory)) as server:
        return cost(server, server_directory)


def with_facts(count: int, directory: Path) -> float:
    """Beside so many facts of other providers."""
    with serving.tidegate(directory, config(directory)) as server, server.client() as client:
        for first in range(0, count, 1_000):
            batch = [_spare_fact(n) for n in range(first, min(count, first + 1_000))]
            assert not any(item.reason for item in client.report_capacity("spare", batch))
        return cost(server, directory)


def _spare_fact(n: int) -> types.Observation:
    quota = types.Quota(window=f"window-{n // SPARE}", remaining_percent=50)
    observation = types.Observation(provider=f"spare-{n % SPARE}", quota=quota)
    observation.age.SetInParent()
    return observation


def with_feeds(count: int, directory: Path) -> float:
    """Beside so many collectors that are connected."""
    with serving.tidegate(directory, config(directory)) as server:

        async def measure() -> float:
            async with _feeds(server, count):
                return await asyncio.to_thread(cost, server, directory)

        return asyncio.run(measure())


@contextlib.asynccontextmanager
async def _feeds(server: serving.Server, count: int) -> AsyncIterator[None]:
    assert server.state is not None
    token = server.state / "local.token"
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncClient(server.address, token_file=token))
            for _ in range(-(-count // 100))
        ]
        for n in range(count):
            hello = wire.Hello(collector_id=f"collector-{n}", providers=[f"spare-{n % SPARE}"])
            await stack.enter_async_context(clients[n // 100].capacity_feed(hello))
        yield


def with_flows(count: int, directory: Path) -> float:
    """Microseconds of a hop, beside so many open flows."""
    with serving.tidegate(directory, config(directory)) as server:
        hops = generator.write_requests(directory / "hops", (calls.hop() for _ in range(count + 50_000)))
        generator.run(server, calls.ENTER, hops, calls=count, seconds=600, warm_up=0, most_bad=0.1)
        return median(generator.run(server, calls.ENTER, hops, seconds=1, most_bad=0.1).cpu for _ in range(ROUNDS))


def with_candidates(count: int, directory: Path) -> float:
    """Microseconds of a new worker's decision in process, when only the last of so many candidates is eligible."""
    del directory
    names = [f"p{n}" for n in range(count - 1)]
    candidates = [Candidate(f"{name}/m", name, "m", Tier.LOCAL, "none", "b") for name in names]
    candidates.append(Candidate("paid/m", "paid", "m", Tier.PAID, "env:KEY", "b"))
    route = Route("r", "routine", tuple(candidates), "f", 1, 1 << 20, allow_paid=True, prefer_paid_flash=True)
    table = FactTable()
    for name in names:
        table.put(fact(name, "m", Health(HealthState.UNHEALTHY), now=NOW, age=SECOND))
    table.put(fact("paid", "", Balance("USD", Decimal(9), available=True), now=NOW, age=SECOND))
    assert decide(route, Request("w", 1), None, table.groups, NOW).verdict is Verdict.ADMITTED
    return microseconds(lambda: decide(route, Request("w", 1), None, table.groups, NOW))[1]


def series() -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """What grows, how it is measured, and the sizes."""
    yield "pins", with_pins, PINS
    yield "facts", with_facts, FACTS
    yield "feeds", with_feeds, FEEDS
    yield "flows", with_flows, FLOWS
    yield "candidates", with_candidates, CANDIDATES


def main() -> int:
    """Measure, print and keep; 1 when pins or facts cost more than they may."""
    figures: dict[str, dict[str, float]] = {}
    for name, measure, sizes in series():
        figures[name] = {}
        for size in sizes:
            with tempfile.TemporaryDirectory() as place:
                figures[name][str(size)] = measure(size, Path(place))
        least = min(figures[name].values()) if name == "candidates" else figures[name][str(sizes[0])]
        told = ", ".join(
            f"{int(size):,}: {value / least:.2f} ({value:.1f} µs)" for size, value in figures[name].items()
        )
        print(f"{name:10} {told}", flush=True)
    results.save("growth", figures)
    return int(
        any(
            max(figures[name].values()) > AIM * figures[name][str(sizes[0])]
            for name, _, sizes in series()
            if name in ("pins", "facts")
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
