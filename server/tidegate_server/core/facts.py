"""The newest fact per key, arranged for the decision (§3.4, §3.6, §3.7 of the contract).

A `FactTable` holds plain data and follows rules; it reads no clock and talks to nobody. The order in which facts arrive
does not change what it holds: the newest counts, and what AVAILABLE cleared stays cleared.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidegate_server.core.freshness import is_forgotten, stale_at
from tidegate_server.core.model import (
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    FactKey,
    Health,
    Instant,
    ObservationResult,
    Quota,
    Value,
)
from tidegate_server.core.policy import FreshnessLimits

CLEARED_BY_AVAILABLE = frozenset({Blocker.AUTH_FAILED, Blocker.PROVIDER_DOWN, Blocker.RATE_LIMITED, Blocker.OVERLOADED})
"""What AVAILABLE without a blocker clears (§3.6). Not QUOTA_EXHAUSTED: only numbers lift it. Not ACCOUNT_DISABLED."""


class FactGroup(NamedTuple):
    """All facts of one provider and model.

    `balances` holds one tuple of currencies per scope. `rows` are the availability rows that may keep a candidate from
    being used: BLOCKED ones and those whose state is unknown. `available` is the AVAILABLE row without a blocker.
    """

    health: Fact | None = None
    quotas: tuple[Fact, ...] = ()
    balances: tuple[tuple[Fact, ...], ...] = ()
    rows: tuple[Fact, ...] = ()
    available: Fact | None = None
    all: tuple[Fact, ...] = ()


NO_FACTS = FactGroup()


def fact_key(provider: str, model: str, value: Value) -> FactKey:
    """The key of an observation: §3, the table of kinds."""
    if isinstance(value, Quota):
        return FactKey(provider, model, "quota", value.window, value.scope)
    if isinstance(value, Balance):
        return FactKey(provider, model, "balance", value.currency, value.scope)
    if isinstance(value, Availability):
        return FactKey(provider, model, "availability", value.blocker.name if value.blocker else "")
    return FactKey(provider, model, "health")


def is_newer(fact: Fact, than: Fact) -> bool:
    """§3.4: the newest capture wins; ties go to the higher sequence.

    An equal observe_time of one collector is a tie, whatever the clocks did between: a sample sent again is no younger.
    """
    if is_tie(fact, than):
        return fact.sequence > than.sequence
    return fact.captured > than.captured


def is_tie(one: Fact, other: Fact) -> bool:
    """Whether two facts were captured at the same instant."""
    if one.captured == other.captured:
        return True
    same_collector = one.collector == other.collector and one.identity == other.identity
    return same_collector and one.observe_time is not None and one.observe_time == other.observe_time


class FactTable:
    """Facts by key, and the same facts grouped by provider and model ("" = the whole account)."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], dict[FactKey, Fact]] = {}
        self._groups: dict[tuple[str, str], FactGroup] = {}
        self._touched: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return sum(map(len, self._facts.values()))

    @property
    def groups(self) -> Mapping[tuple[str, str], FactGroup]:
        """The facts arranged for the decision. What was handed out is never changed: a decision keeps what it read."""
        if self._touched:
            groups = dict(self._groups)
            for subject in self._touched:
                facts = self._facts.get(subject)
                if facts:
                    groups[subject] = group_facts(facts.values())
                else:
                    groups.pop(subject, None)
                    self._facts.pop(subject, None)
            self._touched.clear()
            self._groups = groups
        return self._groups

    def put(self, fact: Fact) -> ObservationResult:
        """Take a fact in unless something newer is known; a late older one touches nothing (SUPERSEDED)."""
        facts = self._facts.setdefault(fact.key[:2], {})
        known = facts.get(fact.key)
        if known is not None and not is_newer(fact, known):
            return ObservationResult.SUPERSEDED
        available = facts.get(fact.key._replace(kind="availability", part="", scope=""))
        if available is not None and _clears(available, fact):
            return ObservationResult.SUPERSEDED
        if known is not None and is_tie(fact, known) and known.captured < fact.captured:
            fact = _captured_at(fact, known.captured)
        facts[fact.key] = fact
        for row in [row for row in facts.values() if _clears(fact, row)] if _is_available(fact) else ():
            del facts[row.key]
        self._touched.add(fact.key[:2])
        return ObservationResult.ACCEPTED

    def replace(self, fact: Fact) -> None:
        """Store `fact` whatever is known: for the copy of a table that the rules were applied to already."""
        self._facts.setdefault(fact.key[:2], {})[fact.key] = fact
        self._touched.add(fact.key[:2])

    def discard(self, key: FactKey) -> None:
        """Take the fact of this key away, if there is one: for a copy, too."""
        self._facts.get(key[:2], {}).pop(key, None)
        self._touched.add(key[:2])

    def remove(self, doomed: Callable[[Fact], bool]) -> frozenset[str]:
        """Take away the facts that `doomed` names, and what goes with them; return the providers touched."""
        gone = self.taken_with(doomed)
        for fact in gone:
            del self._facts[fact.key[:2]][fact.key]
        self._touched.update(fact.key[:2] for fact in gone)
        return frozenset(fact.key.provider for fact in gone)

    def taken_with(self, doomed: Callable[[Fact], bool]) -> list[Fact]:
        """The facts that `doomed` names, and the QUOTA_EXHAUSTED rows that one of them has refuted.

        Such a row must not come back to life, least of all to authorize money, because somebody took the number back.
        """
        gone = []
        for facts in self._facts.values():
            named = [fact for fact in facts.values() if doomed(fact)]
            refuting = max((fact.captured for fact in named if shows_room(fact)), default=None)
            gone += named
            if refuting is not None:
                exhausted = (row for row in facts.values() if kind_of_row(row) is Blocker.QUOTA_EXHAUSTED)
                gone += [row for row in exhausted if row.captured < refuting and row not in named]
        return gone

    def forget(self, now: Instant) -> frozenset[str]:
        """Take away quota and balance facts that were not fresh for a day (§3.7)."""
        return self.remove(lambda fact: isinstance(fact.value, Quota | Balance) and is_forgotten(fact, now))

    def relimit(self, limits: FreshnessLimits) -> None:
        """Apply other upper limits to every fact."""
        for facts in self._facts.values():
            for key, fact in facts.items():
                facts[key] = fact._replace(stale_at=stale_at(fact.value, fact.captured, fact.ttl, limits))
        self._touched.update(self._facts)

    def facts(self, providers: frozenset[str] = frozenset()) -> list[Fact]:
        """The facts of these providers (none named: of all), in the order of their keys."""
        return sorted(
            fact
            for (provider, _), facts in self._facts.items()
            if not providers or provider in providers
            for fact in facts.values()
        )


def group_facts(facts: Iterable[Fact]) -> FactGroup:
    """Arrange the facts of one provider and model. The order is that of their keys, so that answers are stable."""
    ordered = tuple(sorted(facts, key=lambda fact: fact.key))
    scopes: dict[str, list[Fact]] = {}
    for fact in ordered:
        if isinstance(fact.value, Balance):
            scopes.setdefault(fact.key.scope, []).append(fact)
    return FactGroup(
        health=next((f for f in ordered if isinstance(f.value, Health)), None),
        quotas=tuple(f for f in ordered if isinstance(f.value, Quota)),
        balances=tuple(tuple(currencies) for currencies in scopes.values()),
        rows=tuple(f for f in ordered if kind_of_row(f) is not None),
        available=next((f for f in ordered if _is_available(f)), None),
        all=ordered,
    )


def group_all(facts: Iterable[Fact]) -> Mapping[tuple[str, str], FactGroup]:
    """The groups of a bag of facts, whatever their order: for a decision computed again from its log."""
    table = FactTable()
    for fact in facts:
        table.put(fact)
    return table.groups


def kind_of_row(fact: Fact) -> Blocker | None:
    """The kind of a row that may keep a candidate from being used: BLOCKED, or of no known state. None: no such row."""
    value = fact.value
    if not isinstance(value, Availability) or value.state is AvailabilityState.AVAILABLE:
        return None
    return value.blocker or None


def shows_room(fact: Fact) -> bool:
    """A window above 0, or money: what makes QUOTA_EXHAUSTED yield (§3.6)."""
    value = fact.value
    if isinstance(value, Quota):
        return value.unlimited or value.remaining_percent > 0
    if isinstance(value, Balance):
        return value.available is not False and (value.unlimited or value.amount > 0)
    return False


def _is_available(fact: Fact) -> bool:
    """Whether this is the AVAILABLE row without a blocker."""
    value = fact.value
    return (
        isinstance(value, Availability) and value.state is AvailabilityState.AVAILABLE and value.blocker is Blocker.NONE
    )


def _clears(available: Fact, row: Fact) -> bool:
    """Whether AVAILABLE without a blocker lifts this row: it is older, and of a kind that a success disproves."""
    return _is_available(available) and kind_of_row(row) in CLEARED_BY_AVAILABLE and is_newer(available, row)


def _captured_at(fact: Fact, captured: Instant) -> Fact:
    younger_by = fact.captured - captured
    return fact._replace(captured=captured, stale_at=fact.stale_at - younger_by)
