"""The machine's own clocks."""

import asyncio
import time
from collections.abc import Callable

from tidegate_server.core.model import SECOND, Instant, Nanos, WallTime


class SystemClock:
    """See `ports.Clock`."""

    # The clocks themselves, with no function around them: a decision looks at them five times.
    monotonic: Callable[[], Instant] = staticmethod(time.monotonic_ns)
    wall: Callable[[], WallTime] = staticmethod(time.time_ns)

    async def sleep(self, length: Nanos) -> None:
        """Sleep that long on the event loop."""
        await asyncio.sleep(length / SECOND)

    def after(self, length: Nanos, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` on the event loop when that much time has passed."""
        return asyncio.get_running_loop().call_later(length / SECOND, do).cancel
