"""For tests, ours and our users': a clock that moves when it is told to, and short ways to make facts."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from tidegate_server.core.facts import fact_key
from tidegate_server.core.freshness import stale_at
from tidegate_server.core.model import NEVER, SECOND, Fact, Instant, Nanos, Value, WallTime
from tidegate_server.core.policy import FreshnessLimits

EPOCH: WallTime = 1_792_497_600 * SECOND
"""2026-10-20T12:00:00Z, where a FakeClock's wall clock starts."""


class FakeClock:
    """See `ports.Clock`. Time passes only by `advance`; `step_wall` moves the wall clock alone, as NTP would."""

    def __init__(self, monotonic: Instant = 1000 * SECOND, wall: WallTime = EPOCH) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._timers: list[tuple[Instant, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def monotonic(self) -> Instant:
        """Nanoseconds; only `advance` moves it."""
        return self._monotonic

    def wall(self) -> WallTime:
        """Nanoseconds since the Unix epoch."""
        return self._wall

    async def sleep(self, length: Nanos) -> None:
        """Return when `advance` has passed that much time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        cancel = self.after(length, wake)
        try:
            await future
        finally:
            cancel()

    def after(self, length: Nanos, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` when `advance` has passed that much time."""
        timer = (self._monotonic + length, next(self._order), do)
        heapq.heappush(self._timers, timer)

        def cancel() -> None:
            if timer in self._timers:
                self._timers.remove(timer)
                heapq.heapify(self._timers)

        return cancel

    def step_wall(self, by: Nanos) -> None:
        """Set the wall clock forward or back."""
        self._wall += by

    async def advance(self, by: Nanos) -> None:
        """Let time pass, running every timer at its own instant, and let what it wakes run."""
        end = self._monotonic + by
        await self._settle()
        while self._timers and self._timers[0][0] <= end:
            at, _, do = heapq.heappop(self._timers)
            self._move(at)
            do()
            await self._settle()
        self._move(end)

    def _move(self, to: Instant) -> None:
        self._wall += to - self._monotonic
        self._monotonic = to

    @staticmethod
    async def _settle() -> None:
        for _ in range(20):  # a chain of awaits takes a few turns of the loop
            await asyncio.sleep(0)


def fact(  # noqa: PLR0913 - each a part of a fact
    provider: str,
    model: str,
    value: Value,
    *,
    now: Instant,
    age: Nanos = 0,
    ends_in: Nanos | None = None,
    ttl: Nanos | None = None,
    limits: FreshnessLimits | None = None,
    sequence: int = 0,
    collector: str = "",
) -> Fact:
    """A fact of that age at `now`, which ends `ends_in` after it (None: never)."""
    captured = now - age
    return Fact(
        key=fact_key(provider, model, value),
        value=value,
        captured=captured,
        stale_at=stale_at(value, captured, ttl, limits or FreshnessLimits()),
        ends_at=NEVER if ends_in is None else now + ends_in,
        ttl=ttl,
        sequence=sequence,
        collector=collector,
    )
