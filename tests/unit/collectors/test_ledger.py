"""What is said, said again, and taken back."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.v1 import types_pb2
from tidegate_collectors.facts import Balance, Blocker, Health, Kind, Quota, Reading, Source, State, failure
from tidegate_collectors.ledger import Ledger, Update

NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)
SOURCE = Source(provider="p")


def quota(window: str, remaining: float = 50.0, **more: Any) -> Quota:
    return Quota(provider="p", window=window, remaining=remaining, ttl=900.0, **more)


def answer(*facts: Any, **more: Any) -> Reading:
    named = {(fact.window, fact.scope) for fact in facts if isinstance(fact, Quota)}
    return Reading(facts=facts, complete=True, named=frozenset(named | more.pop("also", set())), **more)


def names(update: Update) -> list[tuple[str, str]]:
    return [(each.quota.window, each.quota.scope) for each in update.observations]


def test_a_fact_is_sent_with_no_age_and_kept_with_a_growing_one() -> None:
    ledger = Ledger()
    (sent,) = ledger.take(answer(quota("5h")), SOURCE, 100.0, NOW).observations
    assert sent.HasField("age")
    assert sent.age.ToTimedelta() == timedelta()
    assert not sent.HasField("observe_time")
    (again,) = ledger.newest(107.5, NOW)
    assert again.age.ToTimedelta() == timedelta(seconds=7.5)
    assert again.sequence == sent.sequence


def test_a_payload_s_own_time_of_capture_is_its_age() -> None:
    line = quota("5h", observed_at=NOW - timedelta(seconds=80))
    (sent,) = Ledger().take(answer(line), SOURCE, 100.0, NOW).observations
    assert sent.age.ToTimedelta() == timedelta(seconds=80)


def test_an_error_says_nothing_and_changes_nothing() -> None:
    ledger = Ledger()
    ledger.take(answer(quota("5h")), SOURCE, 0.0, NOW)
    update = ledger.take(failure("no answer"), SOURCE, 5.0, NOW)
    assert (update.observations, update.retractions) == ([], [])
    assert len(ledger) == 1


def test_what_is_past_its_ttl_or_its_reset_is_not_said_again() -> None:
    ledger = Ledger()
    ledger.take(answer(quota("5h", resets_at=NOW + timedelta(seconds=60)), quota("7d")), SOURCE, 0.0, NOW)
    assert len(ledger.newest(59.0, NOW + timedelta(seconds=59))) == 2
    assert [each.quota.window for each in ledger.newest(60.0, NOW + timedelta(seconds=60))] == ["7d"]
    assert ledger.newest(901.0, NOW + timedelta(seconds=901)) == []


def test_a_window_that_is_no_longer_named_is_taken_back_and_what_stands_is_said_again() -> None:
    ledger = Ledger()
    ledger.take(answer(quota("5h"), quota("7d"), quota("7d", scope="model:Fable")), SOURCE, 0.0, NOW)
    ledger.take(Reading(facts=(Blocker(provider="p", kind=Kind.AUTH_FAILED),)), SOURCE, 1.0, NOW)
    update = ledger.take(answer(quota("7d", scope="model:Fable")), SOURCE, 2.0, NOW)
    assert sorted((each.window, each.scope) for each in update.retractions) == [("5h", ""), ("7d", "")]
    # A retraction of `7d` reaches that window in every scope, so the scoped one follows it; so does all else.
    assert ("7d", "model:Fable") in names(update)
    assert any(each.HasField("availability") for each in update.observations)


def test_a_window_that_is_named_but_was_dropped_stands() -> None:
    ledger = Ledger()
    ledger.take(answer(quota("5h"), quota("7d")), SOURCE, 0.0, NOW)
    update = ledger.take(answer(quota("7d"), also={("5h", "")}), SOURCE, 1.0, NOW)
    assert update.retractions == []
    assert names(update) == [("7d", "")]
    assert len(ledger) == 2


def test_an_answer_that_is_not_complete_takes_nothing_back() -> None:
    ledger = Ledger()
    ledger.take(answer(quota("5h"), quota("7d")), SOURCE, 0.0, NOW)
    update = ledger.take(Reading(facts=(quota("5h"),)), SOURCE, 1.0, NOW)
    assert update.retractions == []


def test_a_model_that_left_an_engine_is_taken_back() -> None:
    ledger = Ledger()
    both = (Health(provider="p", model=name, state=State.HEALTHY) for name in ("a", "b"))
    ledger.take(Reading(facts=tuple(both), complete=True), SOURCE, 0.0, NOW)
    left = Health(provider="p", model="a", state=State.HEALTHY)
    update = ledger.take(Reading(facts=(left,), complete=True), SOURCE, 1.0, NOW)
    assert [list(each.providers) for each in update.retractions] == [["p"]]
    assert [each.model for each in update.observations] == ["a"]


def test_a_currency_that_is_no_longer_named_in_a_scope_that_is_stands_until_it_ages() -> None:
    ledger = Ledger()
    rows = tuple(Balance(provider="p", currency=name, available=True, unlimited=True) for name in ("USD", "CNY"))
    ledger.take(Reading(facts=rows, complete=True, named=frozenset({("", "")})), SOURCE, 0.0, NOW)
    update = ledger.take(Reading(facts=rows[:1], complete=True, named=frozenset({("", "")})), SOURCE, 1.0, NOW)
    assert update.retractions == []


def test_a_success_clears_once_and_again_after_the_next_block() -> None:
    ledger = Ledger()
    good = answer(quota("5h"), proves=frozenset({Kind.AUTH_FAILED}))
    bad = Reading(facts=(Blocker(provider="p", kind=Kind.AUTH_FAILED),))

    def cleared(reading: Reading) -> list[types_pb2.Blocker.ValueType]:
        told = ledger.take(reading, SOURCE, 0.0, NOW).observations
        available = [each.availability for each in told if each.HasField("availability")]
        return [each.blocker for each in available if each.state == types_pb2.AVAILABILITY_STATE_AVAILABLE]

    assert cleared(good) == [types_pb2.BLOCKER_AUTH_FAILED], "an earlier run may have blocked it"
    assert cleared(good) == []
    assert cleared(bad) == []
    assert cleared(good) == [types_pb2.BLOCKER_AUTH_FAILED]


def test_another_credential_starts_with_nothing_said() -> None:
    ledger = Ledger()
    ledger.take(answer(quota("5h")), SOURCE, 0.0, NOW)
    ledger.forget()
    assert ledger.newest(1.0, NOW) == []
