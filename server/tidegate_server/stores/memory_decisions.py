"""The decision log in this process's memory: for tests and trials; nothing outlives the process."""

from collections import defaultdict
from collections.abc import Sequence

from tidegate_server.core.decision_record import DecisionRecord, Tally, tallies
from tidegate_server.core.model import SECOND, WallTime
from tidegate_server.ports import DecisionFilter, DecisionPage

DAY = 24 * 3600 * SECOND


class MemoryDecisionStore:
    """The port `DecisionStore` on dictionaries."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, DecisionRecord]] = {}
        self._totals: defaultdict[tuple[str, int, str, str, str], float] = defaultdict(float)
        self._sequence = 0

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        """Store records and add their tallies."""
        for record in records:
            if record.decision_id in self._records:
                continue
            self._sequence += 1
            self._records[record.decision_id] = (self._sequence, record._replace(tallies=()))
            for group, key, figure, value in tallies(record):
                self._totals[record.namespace, record.decide_time // DAY, group, key, figure] += value

    async def list(self, which: DecisionFilter, *, before: int, limit: int) -> DecisionPage:
        """A page of the matching records, the newest first."""
        found = [
            (sequence, record)
            for sequence, record in reversed(self._records.values())
            if (sequence < before or before == 0) and _matches(record, which)
        ]
        page = found[:limit]
        return DecisionPage(tuple(record for _, record in page), page[-1][0] if len(found) > limit else 0)

    async def totals(self, namespace: str) -> Sequence[Tally]:
        """The sums of all tallies that are kept."""
        sums: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for (where, _, group, key, figure), value in self._totals.items():
            if where == namespace:
                sums[group, key, figure] += value
        return [Tally(*place, value) for place, value in sorted(sums.items())]

    async def purge(self, before: WallTime) -> int:
        """Drop the records of decisions before `before`, and the sums of the whole days before it."""
        old = [decision_id for decision_id, (_, record) in self._records.items() if record.decide_time < before]
        for decision_id in old:
            del self._records[decision_id]
        for place in [place for place in self._totals if place[1] < before // DAY]:
            del self._totals[place]
        return len(old)

    def healthy(self) -> bool:
        """Memory does not fail."""
        return True

    async def close(self) -> None:
        """Nothing to let go of."""


def _matches(record: DecisionRecord, which: DecisionFilter) -> bool:
    pairs = (
        (which.session, record.session),
        (which.subject, record.subject),
        (which.kind, record.kind),
        (which.decision_id, record.decision_id),
    )
    return record.namespace == which.namespace and all(wanted in ("", value) for wanted, value in pairs)
