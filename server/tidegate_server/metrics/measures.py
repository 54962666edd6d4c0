"""The numbers themselves. One event loop writes them, so that none needs a lock."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from tidegate_server.core.model import Nanos, PinState, Tier, Verdict

MICROSECOND: Nanos = 1_000
MILLISECOND: Nanos = 1_000_000

BOUNDS: tuple[Nanos, ...] = (
    *(n * MICROSECOND for n in (25, 50, 100, 250, 500, 1_000, 2_500, 5_000)),
    *(n * MILLISECOND for n in (10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)),
)
"""Upper bounds of the buckets: a decision takes tens of microseconds, a cold wait 2.5 s by default, a deadline 30 s."""


class Latency:
    """How long something took, as a histogram."""

    __slots__ = ("counts", "errors", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total: Nanos = 0
        self.errors = 0

    def observe(self, length: Nanos) -> None:
        """Count one that took so long; on a bound it belongs to the lower bucket."""
        self.counts[bisect_left(BOUNDS, length)] += 1
        self.total += length

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)


class DecisionCell:
    """A kind of decision and how often it was made. `fallback`: not on the route's first candidate."""

    __slots__ = ("count", "fallback", "pin", "provider", "reason", "route", "tier", "verdict")

    def __init__(
        self, route: str, verdict: Verdict, reason: str, provider: str, tier: Tier | None, pin: PinState, fallback: bool
    ) -> None:
        self.route = route
        self.verdict = verdict
        self.reason = reason
        self.provider = provider
        self.tier = tier
        self.pin = pin
        self.fallback = fallback
        self.count = 0


class Totals:
    """Sums over all decisions since the start, for rates over time."""

    __slots__ = ("admitted", "bypassed", "fallback", "paid", "refused", "selections", "selections_fallback")

    def __init__(self, cells: Sequence[DecisionCell], selections: Counter[str]) -> None:
        self.admitted = sum(c.count for c in cells if c.verdict is Verdict.ADMITTED)
        self.refused = sum(c.count for c in cells if c.verdict is Verdict.REFUSED)
        self.bypassed = sum(c.count for c in cells if c.verdict is Verdict.BYPASSED)
        self.fallback = sum(c.count for c in cells if c.verdict is Verdict.ADMITTED and c.fallback)
        self.paid = sum(c.count for c in cells if c.verdict is Verdict.ADMITTED and c.tier is Tier.PAID)
        self.selections = selections.total()
        self.selections_fallback = selections["fallback"]

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {name: getattr(self, name) for name in self.__slots__}


class Measures:
    """Everything that is counted while calls are served."""

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, int, int, str, str, int, bool], DecisionCell] = {}
        self.admit = Latency()
        self.admit_errors: Counter[str] = Counter()
        self.flow_refusals: Counter[str] = Counter()
        self.hops_entered = 0
        self.selections: Counter[str] = Counter()
        self.select = Latency()
        self.stores: dict[tuple[str, str], Latency] = {}
        self.pins_created = 0

    def store(self, name: str, operation: str) -> Latency:
        """The latency of one operation of one store."""
        latency = self.stores.get((name, operation))
        if latency is None:
            latency = self.stores[name, operation] = Latency()
        return latency

    def totals(self) -> Totals:
        """The sums now."""
        return Totals(tuple(self.decisions.values()), self.selections)
