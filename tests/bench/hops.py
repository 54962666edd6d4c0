"""A hop's check and charge on Valkey: one function call, against a guard that reads five keys and then writes four.

The other guard is what is written when nobody thinks of two hops at once: it is not atomic, and awaits its commands one
by one, or sends the reads and the writes as a pipeline each. Run by `python -m tests.bench hops`.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

import redis.asyncio
from tidegate_server.core.flow.model import Entered, FlowKey, FlowLimits, HopAsk, Unproved
from tidegate_server.core.model import SECOND
from tidegate_server.stores.valkey.flows import FLOWS, ValkeyFlowStore
from tidegate_server.stores.valkey.link import Link
from tidegate_server.wiring.clock import SystemClock

from tests.bench import results
from tests.bench.rounds import in_turns, ratio
from tests.support import servers

IN_FLIGHT = 32
HOPS = 10
SECONDS = 1.0
AIMS = {"one by one": 8.0, "pipelined": 1.5}
READS = ("depth", "chain", "fan-out", "tokens", "start")
WRITES = READS[:-1]

Hop = Callable[[str, str], Awaitable[None]]


async def rate(hop: Hop) -> float:
    """Hops a second, `HOPS` in each flow. `hop` is given the flow's trace id and a hop id."""
    numbers = itertools.count(time.time_ns())
    made = 0

    async def caller(until: float) -> None:
        nonlocal made
        while time.perf_counter() < until:
            number = next(numbers)
            await hop(f"{number // HOPS:032x}", f"{number:016x}")
            made += 1

    begun = time.perf_counter()
    await asyncio.gather(*(caller(begun + SECONDS) for _ in range(IN_FLIGHT)))
    return made / (time.perf_counter() - begun)


async def ours(server: servers.Valkey) -> float:
    """The store's own rate."""
    clock = SystemClock()
    link = Link(server.url(), [FLOWS], clock)
    await link.open()
    store = ValkeyFlowStore(link, server.url(), clock)

    async def hop(trace_id: str, hop_id: str) -> None:
        key = FlowKey("default", trace_id)
        asked = HopAsk(key, Unproved.NO_MEMBER, "", "planner", hop_id, FlowLimits(), 300 * SECOND, "", 100)
        assert isinstance(await store.enter(asked), Entered)

    found = await rate(hop)
    await store.close()
    await link.close()
    return found


async def check_then_record(server: servers.Valkey, *, pipelined: bool) -> float:
    """The other guard's."""
    client = redis.asyncio.Redis(port=server.port, max_connections=IN_FLIGHT)

    async def hop(trace_id: str, hop_id: str) -> None:
        del hop_id
        keys = {name: f"{{{trace_id}}}:{name}" for name in READS}
        if pipelined:
            reads, writes = client.pipeline(transaction=False), client.pipeline(transaction=False)
            for name in READS:
                reads.get(keys[name])
            await reads.execute()
            for name in WRITES:
                writes.set(keys[name], "1", ex=300)
            await writes.execute()
            return
        for name in READS:
            await client.get(keys[name])
        for name in WRITES:
            await client.set(keys[name], "1", ex=300)

    found = await rate(hop)
    await client.aclose()
    return found


def main() -> int:
    """Measure, print and keep; 1 when an aim was missed."""
    server = servers.valkey()
    missed, figures = False, {}
    for name, aim in AIMS.items():
        seen = in_turns(
            lambda: asyncio.run(ours(server)),
            lambda name=name: asyncio.run(check_then_record(server, pipelined=name == "pipelined")),  # type: ignore[misc]
        )
        found = ratio(seen)
        print(
            f"hops/s on Valkey : check-then-record {name}  {found} (aim {aim});"
            f" last {seen[-1][0]:.0f} : {seen[-1][1]:.0f}"
        )
        figures[name] = {"ratio": found._asdict(), "ours": seen[-1][0], "other": seen[-1][1]}
        missed |= found.median < aim
    results.save("hops", figures)
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
