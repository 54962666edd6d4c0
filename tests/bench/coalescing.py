"""A Python gateway with 256 admissions in flight: the coalescing client against the plain one, same server core.

Run by `python -m tests.bench coalescing`.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from tidegate import AsyncClient

from tests.bench import results, serving
from tests.bench.rounds import in_turns, ratio

IN_FLIGHT = 256
SECONDS = 1.5
AIM = 3.0


async def decisions(server: serving.Server, *, coalesce: bool) -> float:
    """Decisions a second."""
    assert server.state is not None
    made = 0
    async with AsyncClient(server.address, token_file=server.state / "local.token", coalesce=coalesce) as client:

        async def gateway(number: int, until: float) -> None:
            nonlocal made
            while time.perf_counter() < until:
                (await client.admit("managed/routine", f"worker-{number}", 48_123)).require()
                made += 1

        await asyncio.gather(*(gateway(n, time.perf_counter() + 0.3) for n in range(IN_FLIGHT)))
        made, begun = 0, time.perf_counter()
        await asyncio.gather(*(gateway(n, begun + SECONDS) for n in range(IN_FLIGHT)))
        return made / (time.perf_counter() - begun)


def main() -> int:
    """Measure and print; 1 when the aim was missed."""
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as place, serving.tidegate(Path(place)) as server:
        os.sched_setaffinity(0, {serving.LOAD_CORE})
        try:
            seen = in_turns(
                lambda: asyncio.run(decisions(server, coalesce=True)),
                lambda: asyncio.run(decisions(server, coalesce=False)),
            )
        finally:
            os.sched_setaffinity(0, cores)
    found = ratio(seen)
    print(
        f"decisions/s, coalescing : plain  {found}; best {max(a for a, _ in seen):.0f} : {max(b for _, b in seen):.0f}"
    )
    results.save("coalescing", {"ratio": found._asdict(), "coalescing": seen[-1][0], "plain": seen[-1][1]})
    return int(found.median < AIM)


if __name__ == "__main__":
    raise SystemExit(main())
