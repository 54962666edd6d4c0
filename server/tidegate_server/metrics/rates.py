"""How the sums over decisions grew over the last hour: what the page draws without a Prometheus beside it."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tidegate_server.core.model import SECOND, Nanos, WallTime
from tidegate_server.metrics.measures import Measures
from tidegate_server.ports import Clock

SAMPLE_EVERY: Nanos = 10 * SECOND
SAMPLES = 360
"""One hour."""


class Sample(NamedTuple):
    """What was decided within the SAMPLE_EVERY before `end`, by name."""

    end: WallTime
    counts: dict[str, int]


class Rates:
    """Takes a sample now and then; costs a decision nothing."""

    def __init__(self, measures: Measures, clock: Clock) -> None:
        self._measures = measures
        self._clock = clock
        self._before = measures.totals().as_dict()
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    def samples(self) -> Sequence[Sample]:
        """The last hour, the oldest first; the last one is still growing."""
        return (*self._samples, self._grown())

    async def run(self) -> None:
        """Sample for ever; a task of the server."""
        while True:
            await self._clock.sleep(SAMPLE_EVERY)
            self._samples.append(self._grown())
            self._before = self._measures.totals().as_dict()

    def _grown(self) -> Sample:
        totals = self._measures.totals().as_dict()
        return Sample(self._clock.wall(), {name: count - self._before[name] for name, count in totals.items()})
