"""The three things that time is for: how old, what date, and waiting. Injected, so that no test waits."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What everything that runs takes its time from."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow, and count while the machine sleeps: for ages."""
        ...

    def now(self) -> datetime:
        """Return the wall clock, in UTC: for what providers date."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own."""

    _AGE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def monotonic(self) -> float:
        """Return seconds since the machine started, its sleep included where the system can tell."""
        return time.clock_gettime(self._AGE)

    def now(self) -> datetime:
        """Return the wall clock."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(seconds)
