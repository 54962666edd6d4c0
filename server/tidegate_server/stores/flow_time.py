"""The clock of a flow store in one process.

Flows are limited in time, and their state outlives the process, so neither clock of the machine will do alone: the
wall clock may step while hops run, the monotonic one means nothing after a restart. Flow time is the wall clock as it
was when the store was opened, counted on monotonically: a step changes nothing in a running process. At the next start
it never begins before the last time that was written down, so that a step backwards gives a flow at most what the
server was down for.
"""

from tidegate_server.core.model import WallTime
from tidegate_server.ports import Clock


class FlowTime:
    """Flow time from `clock`, never before `not_before`."""

    def __init__(self, clock: Clock, not_before: WallTime = 0) -> None:
        self._clock = clock
        self._epoch = max(clock.wall(), not_before) - clock.monotonic()

    def now(self) -> WallTime:
        """Nanoseconds since the Unix epoch; never goes back."""
        return self._epoch + self._clock.monotonic()
