"""Which facts are kept, and when they count (§3 of the contract)."""

import itertools
import random
from decimal import Decimal

import pytest
from tidegate_server.core.facts import FactTable, fact_key, group_facts, is_newer
from tidegate_server.core.freshness import FORGOTTEN_AFTER, freshness, is_forgotten, is_fresh, limit_of, stale_at
from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    FactKey,
    Freshness,
    Health,
    HealthState,
    ObservationResult,
    Quota,
    Value,
)
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.testing import fact

NOW = 100_000 * SECOND
ACCEPTED, SUPERSEDED = ObservationResult.ACCEPTED, ObservationResult.SUPERSEDED
HEALTHY = Health(HealthState.HEALTHY)
MONEY = Balance("USD", Decimal(1))
LIMITS = FreshnessLimits()


def row(blocker: Blocker, state: AvailabilityState = AvailabilityState.BLOCKED) -> Availability:
    return Availability(state, blocker)


AVAILABLE = Availability(AvailabilityState.AVAILABLE)
VALUES: dict[str, tuple[Value, int]] = {
    "health": (HEALTHY, 15 * SECOND),
    "quota": (Quota("5h", 50), 900 * SECOND),
    "balance": (MONEY, 300 * SECOND),
    "availability": (AVAILABLE, 300 * SECOND),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_fact_is_fresh_up_to_its_limit_and_not_a_nanosecond_longer(kind: str) -> None:
    value, limit = VALUES[kind]
    assert limit_of(value, LIMITS) == limit
    one = fact("p", "", value, now=NOW)
    assert (freshness(one, NOW + limit), is_fresh(one, NOW + limit)) == (Freshness.FRESH, True)
    assert (freshness(one, NOW + limit + 1), is_fresh(one, NOW + limit + 1)) == (Freshness.STALE, False)


@pytest.mark.parametrize(("ttl", "limit"), [(None, 15), (5, 5), (15, 15), (100, 15)])
def test_a_ttl_may_only_shorten_the_limit(ttl: int | None, limit: int) -> None:
    assert stale_at(HEALTHY, NOW, None if ttl is None else ttl * SECOND, LIMITS) == NOW + limit * SECOND


def test_past_its_reset_a_fact_is_unknown_however_young() -> None:
    one = fact("p", "", Quota("5h", 0), now=NOW, ends_in=10)
    assert freshness(one, NOW + 9) is Freshness.FRESH
    assert freshness(one, NOW + 10) is Freshness.EXPIRED
    assert not is_fresh(one, NOW + 10)
    late = fact("p", "", Quota("5h", 0), now=NOW, ends_in=2 * 900 * SECOND)
    assert freshness(late, NOW + 901 * SECOND) is Freshness.STALE


def test_a_limit_past_the_end_of_the_clock_ends_with_it() -> None:
    assert stale_at(HEALTHY, NEVER - 1, None, LIMITS) == NEVER


def test_a_number_is_forgotten_a_day_after_it_was_fresh_and_health_is_not() -> None:
    quota = fact("p", "", Quota("5h", 0), now=NOW)
    end = NOW + 900 * SECOND + FORGOTTEN_AFTER
    assert (is_forgotten(quota, end - 1), is_forgotten(quota, end)) == (False, True)
    short = fact("p", "", MONEY, now=NOW, ends_in=SECOND)
    table = FactTable()
    for one in (quota, short, fact("p", "", HEALTHY, now=NOW), fact("q", "", AVAILABLE, now=NOW)):
        table.put(one)
    assert table.forget(NOW + SECOND + FORGOTTEN_AFTER) == {"p"}
    assert [kept.key.kind for kept in table.facts()] == ["health", "quota", "availability"]
    assert table.forget(end) == {"p"}
    assert len(table) == 2


KEYS: list[tuple[Value, FactKey]] = [
    (HEALTHY, FactKey("p", "m", "health")),
    (Quota("5h", 1, scope="s"), FactKey("p", "m", "quota", "5h", "s")),
    (Balance("USD", scope="s"), FactKey("p", "m", "balance", "USD", "s")),
    (row(Blocker.AUTH_FAILED), FactKey("p", "m", "availability", "AUTH_FAILED")),
    (AVAILABLE, FactKey("p", "m", "availability")),
]


@pytest.mark.parametrize(("value", "key"), KEYS, ids=lambda value: type(value).__name__)
def test_the_key_is_the_contracts(value: Value, key: FactKey) -> None:
    assert fact_key("p", "m", value) == key


def test_the_newest_capture_wins_and_a_tie_goes_to_the_higher_sequence() -> None:
    def at(age: int, sequence: int) -> Fact:
        return fact("p", "", HEALTHY, now=NOW, age=age, sequence=sequence)

    assert is_newer(at(1, 0), at(2, 9))
    assert is_newer(at(1, 2), at(1, 1))
    assert not is_newer(at(1, 1), at(1, 1))
    assert not is_newer(at(2, 9), at(1, 0))


def test_an_equal_observe_time_of_one_collector_is_a_tie_whatever_the_clocks_did() -> None:
    old = fact("p", "", HEALTHY, now=NOW, age=9, collector="c")._replace(observe_time=5, identity="i")
    again = fact("p", "", HEALTHY, now=NOW, age=0, collector="c", sequence=0)._replace(observe_time=5, identity="i")
    assert not is_newer(again, old)
    assert is_newer(again._replace(sequence=1), old)
    assert is_newer(again._replace(collector="d"), old)
    assert is_newer(again._replace(identity="j"), old)
    assert is_newer(again._replace(observe_time=None), old._replace(observe_time=None))
    table = FactTable()
    table.put(old)
    assert table.put(again._replace(sequence=1)) is ACCEPTED
    (kept,) = table.facts()
    assert (kept.captured, kept.stale_at) == (old.captured, old.stale_at)  # sent again, and no younger


@pytest.mark.parametrize("kind", [Blocker.AUTH_FAILED, Blocker.PROVIDER_DOWN, Blocker.RATE_LIMITED, Blocker.OVERLOADED])
def test_a_success_clears_older_rows_of_these_kinds(kind: Blocker) -> None:
    table = FactTable()
    for subject, model in (("p", ""), ("p", "m"), ("q", "")):
        table.put(fact(subject, model, row(kind), now=NOW, age=2))
    assert table.put(fact("p", "", AVAILABLE, now=NOW, age=1)) is ACCEPTED
    assert table.groups[("p", "")].rows == ()
    assert [r.key.part for s in (("p", "m"), ("q", "")) for r in table.groups[s].rows] == [kind.name, kind.name]
    assert table.put(fact("p", "", row(kind), now=NOW, age=2)) is SUPERSEDED  # it came late
    assert table.put(fact("p", "", row(kind), now=NOW, age=0)) is ACCEPTED
    assert len(table.groups[("p", "")].rows) == 1


@pytest.mark.parametrize("kind", [Blocker.QUOTA_EXHAUSTED, Blocker.ACCOUNT_DISABLED])
def test_a_success_clears_no_row_of_the_other_kinds(kind: Blocker) -> None:
    table = FactTable()
    table.put(fact("p", "", row(kind), now=NOW, age=2))
    table.put(fact("p", "", AVAILABLE, now=NOW, age=1))
    assert [r.key.part for r in table.groups[("p", "")].rows] == [kind.name]


def test_what_a_table_holds_depends_on_no_order() -> None:
    facts = [
        fact("p", "", HEALTHY, now=NOW, age=3),
        fact("p", "", Health(HealthState.LOADING), now=NOW, age=1),
        fact("p", "", Quota("5h", 1), now=NOW),
        fact("p", "m", Quota("5h", 2), now=NOW, age=8),
        fact("p", "", row(Blocker.AUTH_FAILED), now=NOW, age=5),
        fact("p", "", AVAILABLE, now=NOW, age=4),
        fact("p", "", MONEY, now=NOW),
    ]
    held = set()
    for order in itertools.islice(itertools.permutations(facts), 0, None, 97):
        table = FactTable()
        for one in order:
            table.put(one)
        held.add(tuple(table.facts()))
    assert len(held) == 1


def test_groups_are_ordered_by_key_and_replaced_whole() -> None:
    facts = [fact("p", "", Quota(window, 1), now=NOW) for window in ("7d", "5h", "1mo")]
    facts += [
        fact("p", "", Balance(currency, scope=scope), now=NOW) for currency in ("USD", "EUR") for scope in ("b", "")
    ]
    random.Random(1).shuffle(facts)
    group = group_facts(facts)
    assert [q.key.part for q in group.quotas] == ["1mo", "5h", "7d"]
    scopes = [[(b.key.scope, b.key.part) for b in scope] for scope in group.balances]
    assert sorted(scopes) == [[("", "EUR"), ("", "USD")], [("b", "EUR"), ("b", "USD")]]
    table = FactTable()
    table.put(facts[0])
    before = table.groups[("p", "")]
    table.put(fact("p", "", HEALTHY, now=NOW))
    assert before.health is None
    assert table.groups[("p", "")].health is not None
    table.remove(lambda _: True)
    assert ("p", "") not in table.groups
    assert len(table) == 0


def test_other_limits_count_from_the_capture() -> None:
    table = FactTable()
    table.put(fact("p", "", HEALTHY, now=NOW, age=SECOND, ttl=7 * SECOND))
    table.put(fact("q", "", HEALTHY, now=NOW, age=SECOND))
    table.relimit(FreshnessLimits(health=10 * SECOND))
    limits = {one.key.provider: one.stale_at for one in table.facts()}
    assert limits == {"p": NOW + 6 * SECOND, "q": NOW + 9 * SECOND}
    assert [one.key.provider for one in table.facts(frozenset({"q"}))] == ["q"]


def test_a_copy_of_a_table_takes_what_it_is_told() -> None:
    table = FactTable()
    newer, older = fact("p", "", HEALTHY, now=NOW), fact("p", "", HEALTHY, now=NOW, age=9)
    table.put(newer)
    table.replace(older)  # the rules were applied where the original is
    assert table.groups[("p", "")].health == older
    table.discard(older.key)
    table.discard(older.key)
    table.discard(FactKey("nobody", "", "health"))
    assert table.groups == {}
    assert len(table) == 0
