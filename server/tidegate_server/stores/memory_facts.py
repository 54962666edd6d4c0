"""Facts in this process's memory: the embedded mode's store, where collectors tell them again after a restart."""

from collections.abc import Callable, Mapping, Sequence

from tidegate_server.core.facts import FactGroup, FactTable
from tidegate_server.core.model import SECOND, Fact, Nanos, ObservationResult
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.ports import Clock, FactFilter
from tidegate_server.stores.retraction import is_retracted

SWEEP_EVERY: Nanos = 60 * SECOND
"""How often forgotten facts are looked for. The decision does not depend on it: it knows a forgotten fact by itself."""


class MemoryFactStore:
    """The newest fact per key. A batch is one step of the event loop: it is seen whole or not at all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table = FactTable()
        self._subscribers: list[Callable[[frozenset[str]], None]] = []
        self._swept = clock.monotonic()

    def groups(self) -> Mapping[tuple[str, str], FactGroup]:
        """The facts as they stand."""
        return self._table.groups

    def facts(self, providers: frozenset[str]) -> Sequence[Fact]:
        """The stored facts of these providers (empty: of all)."""
        return self._table.facts(providers)

    async def put(self, facts: Sequence[Fact], retract: FactFilter | None = None) -> Sequence[ObservationResult]:
        """Take `retract` away, then put each fact unless a newer one of its key is stored."""
        touched = {fact.key.provider for fact in facts}
        if retract is not None:
            touched |= self._table.remove(lambda fact: is_retracted(fact, retract))
        results = [self._table.put(fact) for fact in facts]
        self._sweep()
        self._tell(frozenset(touched))
        return results

    def relimit(self, limits: FreshnessLimits) -> None:
        """Apply other upper limits to what is stored."""
        self._table.relimit(limits)
        self._tell(frozenset(fact.key.provider for fact in self._table.facts()))

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call `changed` with the providers touched, after each change."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def healthy(self) -> bool:
        """Memory does not fail."""
        return True

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept >= SWEEP_EVERY:
            self._swept = now
            self._table.forget(now)

    def _tell(self, providers: frozenset[str]) -> None:
        for changed in tuple(self._subscribers):
            changed(providers)
