"""From an observation to a fact: the rules of receipt (§3.2, §3.3, §3.5 of the contract).

One bad item is refused by itself, with a reason that names its field; nothing of it stays behind.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from tidegate_server.core.facts import fact_key
from tidegate_server.core.freshness import stale_at
from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    Health,
    Instant,
    Malformed,
    Nanos,
    Observation,
    Quota,
    Value,
    WallTime,
)
from tidegate_server.core.policy import FreshnessLimits, KnownProvider

FUTURE_TOLERANCE: Nanos = 5 * SECOND
"""How far ahead of this server's clock an observe_time may be (§3.3)."""

FARTHEST_END: Nanos = 400 * 24 * 3600 * SECOND
"""A reset further away than the longest billing period is a unit's mistake (milliseconds read as seconds): the end is
then unknown, and the value still counts."""

MODEL_SCOPE = "model:"
MAX_NAME_BYTES = 256


class Receipt(NamedTuple):
    """When a batch arrived, on both clocks, and who sent it."""

    monotonic: Instant
    wall: WallTime
    identity: str = ""
    collector: str = ""


class Refused(NamedTuple):
    """Why an item was refused: the field, and what is wrong with it."""

    reason: str


class _RefusedItem(Exception):
    """Carries a reason up to `receive`."""


def receive(
    item: Observation, providers: Mapping[str, KnownProvider], limits: FreshnessLimits, receipt: Receipt
) -> Fact | Refused:
    """Make a fact of what a collector sent, or say why not."""
    try:
        return _receive(item, providers, limits, receipt)
    except _RefusedItem as refused:
        return Refused(str(refused))


def _receive(
    item: Observation, providers: Mapping[str, KnownProvider], limits: FreshnessLimits, receipt: Receipt
) -> Fact:
    provider = providers.get(item.provider)
    if provider is None:
        raise _RefusedItem(f'provider: "{item.provider}" is not configured')
    value, model = _model_scope(checked_value(item.value), _model(item.model, item.provider, provider), item, provider)
    if item.ttl is not None and item.ttl <= 0:
        raise _RefusedItem("ttl: must be positive")
    captured = receipt.monotonic - age_at_receipt(item, receipt.wall)
    end_time = plausible_end(item.end_time, receipt.wall)
    return Fact(
        key=fact_key(item.provider, model, value),
        value=value,
        captured=captured,
        stale_at=stale_at(value, captured, item.ttl, limits),
        ends_at=NEVER if end_time is None else receipt.monotonic + (end_time - receipt.wall),
        observe_time=item.observe_time,
        end_time=end_time,
        ttl=item.ttl,
        sequence=item.sequence,
        collector=receipt.collector,
        identity=receipt.identity,
    )


def age_at_receipt(item: Observation, wall: WallTime) -> Nanos:
    """§3.2: the sample's own `age`, or receipt − observe_time, never negative; given both, `age` counts."""
    if item.observe_time is not None and item.observe_time < 0:
        raise _RefusedItem("observe_time: before 1970")
    if item.observe_time is not None and item.observe_time - wall > FUTURE_TOLERANCE:
        raise _RefusedItem("observe_time: more than 5 s in the future")
    if item.age is not None:
        if item.age < 0:
            raise _RefusedItem("age: must not be negative")
        return item.age
    if item.observe_time is None:
        raise _RefusedItem("observe_time: neither observe_time nor age is given")
    return max(0, wall - item.observe_time)


def plausible_end(end_time: WallTime | None, wall: WallTime) -> WallTime | None:
    """The reset that counts. A passed one makes the fact unknown (§3.1); one absurdly far away is none at all."""
    if end_time is None or end_time - wall > FARTHEST_END:
        return None
    return max(end_time, 0)


def _model(name: str, provider: str, known: KnownProvider) -> str:
    """The configured model that the engine or the vendor calls so; "" is the account."""
    if name and name not in known.models:
        raise _RefusedItem(f'model: "{name}" is not a model of {provider}')
    return known.models[name] if name else ""


def _model_scope(value: Value, model: str, item: Observation, known: KnownProvider) -> tuple[Value, str]:
    """`scope: model:X` becomes the model."""
    if not isinstance(value, Quota | Balance) or not value.scope.startswith(MODEL_SCOPE):
        return value, model
    named = _model(value.scope.removeprefix(MODEL_SCOPE), item.provider, known)
    if not named or model not in ("", named):
        raise _RefusedItem(f'scope: "{value.scope}" names another model than the observation')
    return value._replace(scope=""), named


def checked_value(value: Value | Malformed) -> Value:
    """The value with percentages clamped; refused where something is missing or no number."""
    match value:
        case Malformed(reason):
            raise _RefusedItem(reason)
        case Health():
            return _health(value)
        case Quota():
            return _quota(value)
        case Balance():
            return _balance(value)
        case _:
            return _availability(value)


def _health(health: Health) -> Health:
    for name in ("running", "waiting"):
        count = getattr(health, name)
        if count is not None and count < 0:
            raise _RefusedItem(f"health.{name}: must not be negative")
    if health.kv_usage is None:
        return health
    return health._replace(kv_usage=_clamped(health.kv_usage, 1.0, "health.kv_usage"))


def _quota(quota: Quota) -> Quota:
    _name(quota.window, "quota.window", required=True)
    _name(quota.scope, "quota.scope")
    remaining = _clamped(quota.remaining_percent, 100.0, "quota.remaining_percent")
    return quota._replace(remaining_percent=100.0 if quota.unlimited else remaining)


def _balance(balance: Balance) -> Balance:
    _name(balance.currency, "balance.currency", required=not balance.unlimited)
    _name(balance.scope, "balance.scope")
    if balance.unlimited:
        return balance
    if not balance.amount.is_finite():
        raise _RefusedItem("balance.amount: must be a finite number")
    return balance


def _availability(availability: Availability) -> Availability:
    blocker = availability.blocker
    if blocker > Blocker.OVERLOADED:
        raise _RefusedItem(f"availability.blocker: {blocker.name} is not a blocker that can be observed")
    if availability.state is AvailabilityState.BLOCKED and blocker is Blocker.NONE:
        raise _RefusedItem("availability.blocker: a BLOCKED observation names its kind")
    return availability


def _clamped(number: float, top: float, field: str) -> float:
    """§3.5: over the top or below 0 is clamped; NaN and infinity are no numbers."""
    if not math.isfinite(number):
        raise _RefusedItem(f"{field}: must be a finite number")
    return min(max(number, 0.0), top)


def _name(name: str, field: str, *, required: bool = False) -> None:
    if required and not name:
        raise _RefusedItem(f"{field}: is missing")
    if len(name.encode()) > MAX_NAME_BYTES or not name.isprintable():
        raise _RefusedItem(f"{field}: must be printable and at most {MAX_NAME_BYTES} bytes")
