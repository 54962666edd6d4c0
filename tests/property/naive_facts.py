"""Facts once more (§3 of the contract), written from its sentences: slow, flat, and meant to be checked by eye.

The other half, and the reason for both, is in `naive_policy`. Where the contract's wording leaves room, the reading
taken stands beside the rule, after the word "Reading".
"""

import math
from collections.abc import Iterable, Mapping

from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    FactKey,
    Health,
    Instant,
    Malformed,
    Observation,
    ObservationResult,
    Quota,
    Value,
    WallTime,
)
from tidegate_server.core.policy import FreshnessLimits, KnownProvider

DAY = 24 * 3600 * SECOND
FUTURE_TOLERANCE = 5 * SECOND

ROW_KINDS = frozenset(
    {
        Blocker.QUOTA_EXHAUSTED,
        Blocker.AUTH_FAILED,
        Blocker.ACCOUNT_DISABLED,
        Blocker.PROVIDER_DOWN,
        Blocker.RATE_LIMITED,
        Blocker.OVERLOADED,
    }
)
"""The kinds of the table in §3: what a BLOCKED row may be blocked by."""

SHORT_KINDS = frozenset({Blocker.RATE_LIMITED, Blocker.OVERLOADED})
"""§3.6, §4.3: they make BUSY, and vanish with their limit when they name no end."""

CLEARED_BY_AVAILABLE = frozenset({Blocker.AUTH_FAILED, Blocker.PROVIDER_DOWN}) | SHORT_KINDS
"""§3.6: "AVAILABLE clears older AUTH_FAILED, PROVIDER_DOWN, RATE_LIMITED, OVERLOADED rows"."""


def receive(
    observation: Observation,
    received: Instant,
    wall: WallTime,
    limits: FreshnessLimits,
    providers: Mapping[str, KnownProvider],
    collector: str = "",
) -> Fact | str:
    """Turn one observation into a fact, or say why it is refused (§3.1–§3.3, §3.5)."""
    known = providers.get(observation.provider)
    if known is None:
        return "provider"
    model, value = observation.model, observation.value
    if isinstance(value, Malformed):  # §3.5: "a missing value"
        return "value"
    if isinstance(value, Quota) and value.scope.startswith("model:"):  # §3.5: "`scope: model:X` becomes the model"
        model, value = value.scope.removeprefix("model:"), value._replace(scope="")
    if model:
        if model not in known.models:
            return "model"
        model = known.models[model]
    if observation.observe_time is None and observation.age is None:  # §3.2: "neither: refused"
        return "observe_time"
    if observation.observe_time is not None and observation.observe_time > wall + FUTURE_TOLERANCE:  # §3.3
        return "observe_time"
    if observation.age is not None:  # §3.2: "both given: `age` counts"
        age = observation.age
    else:
        assert observation.observe_time is not None
        age = wall - observation.observe_time
    age = max(0, age)  # §3.2: "never negative"
    fault = _fault_of(value)
    if fault:
        return fault
    limit = {Health: limits.health, Quota: limits.quota, Balance: limits.balance, Availability: limits.availability}[
        type(value)
    ]
    if observation.ttl is not None:  # §3.1: "min(its ttl, the configured limit)"
        limit = min(limit, observation.ttl)
    captured = received - age
    end = observation.end_time
    return Fact(
        key=key_of(observation.provider, model, value),
        value=_clamped(value),
        captured=captured,
        stale_at=captured + limit,
        ends_at=NEVER if end is None else received + (end - wall),  # §3.2: "monotonic deadlines at receipt"
        observe_time=observation.observe_time,
        end_time=end,
        ttl=observation.ttl,
        sequence=observation.sequence,
        collector=collector,
    )


def _fault_of(value: Value) -> str:
    """§3.5: NaN, infinity, and a BLOCKED row of a kind that is not in the table are refused."""
    if isinstance(value, Quota) and not math.isfinite(value.remaining_percent):
        return "remaining_percent"
    if isinstance(value, Health) and value.kv_usage is not None and not math.isfinite(value.kv_usage):
        return "kv_usage"
    if isinstance(value, Balance) and not value.amount.is_finite():
        return "amount"
    if isinstance(value, Availability) and value.state is AvailabilityState.BLOCKED and value.blocker not in ROW_KINDS:
        return "blocker"
    return ""


def _clamped(value: Value) -> Value:
    """§3.5: "Percentages over 100 or below 0 are clamped"."""
    if isinstance(value, Quota):
        percent = 100.0 if value.unlimited else value.remaining_percent
        return value._replace(remaining_percent=min(100.0, max(0.0, percent)))
    return value


def key_of(provider: str, model: str, value: Value) -> FactKey:
    """The table of §3: what tells one fact from another."""
    if isinstance(value, Health):
        return FactKey(provider, model, "health")
    if isinstance(value, Quota):
        return FactKey(provider, model, "quota", value.window, value.scope)
    if isinstance(value, Balance):
        return FactKey(provider, model, "balance", value.currency, value.scope)
    return FactKey(provider, model, "availability", "" if value.blocker is Blocker.NONE else value.blocker.name)


def is_tie(this: Fact, that: Fact) -> bool:
    """§3.4: "an equal observe_time of one collector is a tie". Reading: so are two captures at the same instant."""
    one_collector = (this.identity, this.collector) == (that.identity, that.collector)
    same_sample = one_collector and this.observe_time is not None and this.observe_time == that.observe_time
    return same_sample or this.captured == that.captured


def is_newer(this: Fact, that: Fact) -> bool:
    """§3.4: the newest capture; ties go to the higher sequence. Reading: of two equal in everything none is newer."""
    return this.sequence > that.sequence if is_tie(this, that) else this.captured > that.captured


def keep(arrivals: Iterable[Fact]) -> tuple[list[Fact], list[ObservationResult]]:
    """§3.4, §3.6: the newest fact of each key, less the rows that an AVAILABLE cleared; and what each arrival was told.

    Reading: what is cleared is gone for good, also when the AVAILABLE is replaced or taken back later; a row that comes
    in late and older than the AVAILABLE is SUPERSEDED by it.
    """
    kept: list[Fact] = []
    results = []
    for arrival in arrivals:
        fact = arrival
        rivals = [other for other in kept if other.key == fact.key]
        if any(not is_newer(fact, rival) for rival in rivals) or any(clears(other, fact) for other in kept):
            results.append(ObservationResult.SUPERSEDED)
            continue
        for rival in rivals:
            if is_tie(fact, rival) and rival.captured < fact.captured:  # §3.4: "A re-sent sample gets no younger"
                fact = fact._replace(captured=rival.captured, stale_at=fact.stale_at - (fact.captured - rival.captured))
        kept = [other for other in kept if other.key != fact.key and not clears(fact, other)]
        kept.append(fact)
        results.append(ObservationResult.ACCEPTED)
    return kept, results


def clears(yes: Fact, row: Fact) -> bool:
    """§3.6: "AVAILABLE clears older … rows of the same provider and model".

    Reading: the observation's own model field, so that a word about the account clears no row of a model.
    """
    return (
        yes.value == Availability(AvailabilityState.AVAILABLE)
        and isinstance(row.value, Availability)
        and row.value.blocker in CLEARED_BY_AVAILABLE
        and row.value.state is not AvailabilityState.AVAILABLE
        and yes.key[:2] == row.key[:2]
        and is_newer(yes, row)
    )


def retract(kept: Iterable[Fact], collector: str, provider: str = "", window: str = "") -> list[Fact]:
    """§3.7: "`retract` removes at once what that collector gave (one window, one provider, or all)"."""
    return [
        fact
        for fact in kept
        if fact.collector != collector
        or (provider and fact.key.provider != provider)
        or (window and (fact.key.kind, fact.key.part) != ("quota", window))
    ]


def is_over(fact: Fact, now: Instant) -> bool:
    """§3.1: now is not before its reset or end."""
    return now >= fact.ends_at


def is_fresh(fact: Fact, now: Instant) -> bool:
    """§3.1: "age ≤ limit and now < reset_time / until_time"."""
    return now <= fact.stale_at and not is_over(fact, now)


def is_stale(fact: Fact, now: Instant) -> bool:
    """Past its limit and not past its end: past a reset a fact is unknown, however old it is (§3.1)."""
    return now > fact.stale_at and not is_over(fact, now)


def is_forgotten(fact: Fact, now: Instant) -> bool:
    """§3.7: "A quota or balance fact is forgotten 24 h after it stopped being fresh".

    Reading: it stopped being fresh at its limit or at its own end, whichever came first.
    """
    return fact.key.kind in {"quota", "balance"} and now >= min(fact.stale_at, fact.ends_at) + DAY
