"""From an observation to a fact, or to a reason that names its field (§3 of the contract)."""

import math
from decimal import Decimal

import pytest
from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    Health,
    HealthState,
    Malformed,
    Observation,
    Quota,
    Tier,
    Value,
)
from tidegate_server.core.observations import FARTHEST_END, FUTURE_TOLERANCE, Receipt, Refused, receive
from tidegate_server.core.policy import FreshnessLimits, KnownProvider
from tidegate_server.testing import EPOCH

PROVIDERS = {"p": KnownProvider(Tier.LOCAL, {"m": "m", "Org/M": "m", "n": "n"})}
RECEIPT = Receipt(5000 * SECOND, EPOCH, "identity", "collector")
HEALTHY = Health(HealthState.HEALTHY)


def received(value: Value | Malformed = HEALTHY, **more: object) -> Fact | Refused:
    parts = {"provider": "p", "model": "", "value": value, "age": 0, **more}
    return receive(Observation(**parts), PROVIDERS, FreshnessLimits(), RECEIPT)  # type: ignore[arg-type]


def accepted(value: Value | Malformed = HEALTHY, **more: object) -> Fact:
    fact = received(value, **more)
    assert isinstance(fact, Fact), fact
    return fact


BLOCKED, AVAILABLE = AvailabilityState.BLOCKED, AvailabilityState.AVAILABLE
REFUSED: dict[str, tuple[Value | Malformed, dict[str, object], str]] = {
    "no such provider": (HEALTHY, {"provider": "q"}, "provider"),
    "no such model": (HEALTHY, {"model": "x"}, "model"),
    "no value": (Malformed("value: none of them"), {}, "value"),
    "ttl of zero": (HEALTHY, {"ttl": 0}, "ttl"),
    "negative ttl": (HEALTHY, {"ttl": -1}, "ttl"),
    "negative age": (HEALTHY, {"age": -1}, "age"),
    "neither age nor time": (HEALTHY, {"age": None}, "observe_time"),
    "before 1970": (HEALTHY, {"observe_time": -1}, "observe_time"),
    "before 1970, with an age": (HEALTHY, {"observe_time": -1, "age": 1}, "observe_time"),
    "in the future": (HEALTHY, {"observe_time": EPOCH + FUTURE_TOLERANCE + 1, "age": None}, "observe_time"),
    "in the future, with an age": (HEALTHY, {"observe_time": EPOCH + FUTURE_TOLERANCE + 1}, "observe_time"),
    "negative running": (Health(HealthState.HEALTHY, running=-1), {}, "health.running"),
    "negative waiting": (Health(HealthState.HEALTHY, waiting=-1), {}, "health.waiting"),
    "kv no number": (Health(HealthState.HEALTHY, kv_usage=math.nan), {}, "health.kv_usage"),
    "kv infinite": (Health(HealthState.HEALTHY, kv_usage=math.inf), {}, "health.kv_usage"),
    "no window": (Quota("", 1), {}, "quota.window"),
    "long window": (Quota("x" * 257, 1), {}, "quota.window"),
    "window out of control": (Quota("a\nb", 1), {}, "quota.window"),
    "scope out of control": (Quota("5h", 1, scope="\0"), {}, "quota.scope"),
    "percent no number": (Quota("5h", math.nan), {}, "quota.remaining_percent"),
    "percent infinite": (Quota("5h", -math.inf), {}, "quota.remaining_percent"),
    "unlimited and no number": (Quota("5h", math.nan, unlimited=True), {}, "quota.remaining_percent"),
    "another model": (Quota("5h", 1, scope="model:n"), {"model": "m"}, "scope"),
    "scope of an empty model": (Quota("5h", 1, scope="model:"), {}, "scope"),
    "scope of no model": (Quota("5h", 1, scope="model:x"), {}, "model"),
    "no currency": (Balance("", Decimal(1)), {}, "balance.currency"),
    "long currency": (Balance("漢" * 86, Decimal(1)), {}, "balance.currency"),
    "balance scope": (Balance("USD", Decimal(1), scope="\x7f"), {}, "balance.scope"),
    "amount no number": (Balance("USD", Decimal("NaN")), {}, "balance.amount"),
    "amount infinite": (Balance("USD", Decimal("-Infinity")), {}, "balance.amount"),
    "blocked by nothing": (Availability(BLOCKED), {}, "availability.blocker"),
    "not a row's kind": (Availability(BLOCKED, Blocker.UNHEALTHY), {}, "availability.blocker"),
    "not a row's kind, cleared": (Availability(AVAILABLE, Blocker.SATURATED), {}, "availability.blocker"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_item_is_refused_with_the_name_of_its_field(what: str) -> None:
    value, more, field = REFUSED[what]
    refused = received(value, **more)
    assert isinstance(refused, Refused)
    assert refused.reason.split(":")[0] == field


def test_a_good_item_becomes_a_fact() -> None:
    fact = accepted(Quota("5h", 40), model="Org/M", age=3 * SECOND, ttl=60 * SECOND, end_time=EPOCH + 9, sequence=4)
    assert fact.key == ("p", "m", "quota", "5h", "")
    assert fact.captured == RECEIPT.monotonic - 3 * SECOND
    assert fact.stale_at == fact.captured + 60 * SECOND
    assert fact.ends_at == RECEIPT.monotonic + 9
    assert (fact.sequence, fact.identity, fact.collector) == (4, "identity", "collector")


@pytest.mark.parametrize(("given", "kept"), [(-5, 0), (0, 0), (0.56, 0.56), (1, 1), (99.9, 99.9), (100.4, 100)])
def test_percentages_are_clamped_and_never_guessed_to_be_fractions(given: float, kept: float) -> None:
    value = accepted(Quota("5h", given)).value
    assert isinstance(value, Quota)
    assert value.remaining_percent == kept


@pytest.mark.parametrize(("given", "kept"), [(-0.1, 0.0), (0.5, 0.5), (1.7, 1.0)])
def test_the_caches_use_is_clamped_to_a_fraction(given: float, kept: float) -> None:
    assert accepted(Health(HealthState.HEALTHY, 0, 0, given)).value == Health(HealthState.HEALTHY, 0, 0, kept)


def test_unlimited_needs_no_number_and_no_currency() -> None:
    assert accepted(Quota("5h", unlimited=True)).value == Quota("5h", 100.0, unlimited=True)
    assert accepted(Balance("", unlimited=True)).value == Balance("", unlimited=True)


def test_the_age_counts_where_both_are_given_and_a_time_alone_is_never_negative() -> None:
    assert accepted(age=7, observe_time=EPOCH - 99).captured == RECEIPT.monotonic - 7
    assert accepted(age=None, observe_time=EPOCH - 99).captured == RECEIPT.monotonic - 99
    assert accepted(age=None, observe_time=EPOCH + FUTURE_TOLERANCE).captured == RECEIPT.monotonic


@pytest.mark.parametrize(
    ("end", "ends_in"),
    [(None, None), (FARTHEST_END, FARTHEST_END), (FARTHEST_END + 1, None), (-1, -1), (-(10**30), -EPOCH)],
)
def test_an_end_absurdly_far_away_is_none_and_a_past_one_has_passed(end: int | None, ends_in: int | None) -> None:
    fact = accepted(Quota("5h", 0), end_time=None if end is None else EPOCH + end)
    assert fact.ends_at == (NEVER if ends_in is None else RECEIPT.monotonic + ends_in)


def test_a_models_scope_becomes_the_model() -> None:
    for model in ("", "m"):
        fact = accepted(Quota("5h", 1, scope="model:m"), model=model)
        assert (fact.key.model, fact.key.scope) == ("m", "")
    assert accepted(Balance("USD", Decimal(1), scope="model:Org/M")).key.model == "m"
    assert accepted(Quota("5h", 1, scope="team")).key.scope == "team"


@pytest.mark.parametrize("state", [AvailabilityState.UNKNOWN, AvailabilityState.AVAILABLE])
@pytest.mark.parametrize("blocker", [Blocker.NONE, Blocker.OVERLOADED])
def test_rows_that_are_not_blocked_may_name_a_kind_or_none(state: AvailabilityState, blocker: Blocker) -> None:
    assert accepted(Availability(state, blocker)).value == Availability(state, blocker)
