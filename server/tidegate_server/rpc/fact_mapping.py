"""Observations and facts between the wire and the core.

What the wire can say and the core has no word for becomes `Malformed` with the field's name, so that one bad item is
refused by itself and never turns into a zero.
"""

import re
from decimal import Decimal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from tidegate.v1 import types_pb2 as wire

from tidegate_server.core.freshness import freshness
from tidegate_server.core.model import (
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    Health,
    HealthState,
    Instant,
    Malformed,
    Nanos,
    Observation,
    Quota,
    Value,
    WallTime,
)

MAX_AMOUNT_LENGTH = 64
"""Digits of a balance; longer text is no amount of money."""

_AMOUNT = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
"""A decimal as every language reads it: no exponent, no blanks, no grouping, no digits but ASCII's."""


def nanos_of(message: Timestamp | Duration) -> int:
    """A time or a length of time in nanoseconds. Any int64 is taken: the core decides what is plausible."""
    return message.seconds * SECOND + message.nanos


def timestamp(nanos: WallTime) -> Timestamp:
    """A wall-clock time on the wire."""
    seconds, rest = divmod(nanos, SECOND)
    return Timestamp(seconds=seconds, nanos=rest)


def duration(nanos: Nanos) -> Duration:
    """A length of time on the wire. Its two parts have one sign."""
    seconds, rest = divmod(abs(nanos), SECOND)
    sign = -1 if nanos < 0 else 1
    return Duration(seconds=sign * seconds, nanos=sign * rest)


def observation_of(message: wire.Observation, batch_sequence: int = 0) -> Observation:
    """What a collector sent. An item without a sequence of its own has its batch's."""
    value, end_time = _value_of(message)
    for field in ("observe_time", "age", "ttl"):
        if not _is_regular(getattr(message, field)):
            value = Malformed(f"{field}: its nanos are out of range")
    return Observation(
        message.provider,
        message.model,
        value,
        nanos_of(message.observe_time) if message.HasField("observe_time") else None,
        nanos_of(message.age) if message.HasField("age") else None,
        nanos_of(message.ttl) if message.HasField("ttl") else None,
        end_time,
        message.sequence or batch_sequence,
    )


def _is_regular(message: Timestamp | Duration) -> bool:
    """Whether the nanos are what the two well-known types allow: of a second, and of a length with the same sign."""
    if isinstance(message, Timestamp):
        return 0 <= message.nanos < SECOND
    return abs(message.nanos) < SECOND and message.seconds * message.nanos >= 0


def _value_of(message: wire.Observation) -> tuple[Value | Malformed, WallTime | None]:
    match message.WhichOneof("value"):
        case "health":
            return _health_of(message.health), None
        case "quota":
            quota = message.quota
            return _quota_of(quota), nanos_of(quota.reset_time) if quota.HasField("reset_time") else None
        case "balance":
            balance = message.balance
            return _balance_of(balance), nanos_of(balance.reset_time) if balance.HasField("reset_time") else None
        case "availability":
            row = message.availability
            return _availability_of(row), nanos_of(row.until_time) if row.HasField("until_time") else None
        case _:
            return Malformed("value: none of health, quota, balance, availability is given"), None


def _health_of(health: wire.Health) -> Health:
    known = health.state in _HEALTH_STATES
    return Health(
        HealthState(health.state) if known else HealthState.UNKNOWN,
        health.running if health.HasField("running") else None,
        health.waiting if health.HasField("waiting") else None,
        health.kv_usage if health.HasField("kv_usage") else None,
    )


def _quota_of(quota: wire.Quota) -> Quota | Malformed:
    if not quota.unlimited and not quota.HasField("remaining_percent"):
        return Malformed("quota.remaining_percent: neither remaining_percent nor unlimited is given")
    return Quota(quota.window, quota.remaining_percent, quota.unlimited, quota.scope)


def _balance_of(balance: wire.Balance) -> Balance | Malformed:
    available = balance.available if balance.HasField("available") else None
    if balance.unlimited:
        return Balance(balance.currency, Decimal(0), True, available, balance.scope)
    if not balance.amount:
        return Malformed("balance.amount: neither amount nor unlimited is given")
    if len(balance.amount) > MAX_AMOUNT_LENGTH or not _AMOUNT.fullmatch(balance.amount):
        return Malformed("balance.amount: is no decimal number")
    return Balance(balance.currency, Decimal(balance.amount), False, available, balance.scope)


def _availability_of(row: wire.Availability) -> Availability | Malformed:
    if row.blocker not in _BLOCKERS:
        return Malformed(f"availability.blocker: {row.blocker} is not a blocker that can be observed")
    state = AvailabilityState(row.state) if row.state in _AVAILABILITY_STATES else AvailabilityState.UNKNOWN
    return Availability(state, Blocker(row.blocker))


_HEALTH_STATES = frozenset(map(int, HealthState))
_AVAILABILITY_STATES = frozenset(map(int, AvailabilityState))
_BLOCKERS = frozenset(map(int, Blocker))


def fact_message(fact: Fact, now: Instant, wall: WallTime) -> wire.Fact:
    """A stored fact with its age. `wall` is the wall-clock time of the instant `now`."""
    age = max(0, now - fact.captured)
    ends = min(fact.stale_at, fact.ends_at)
    return wire.Fact(
        observation=_observation_message(fact, wall - age),
        age=duration(age),
        expire_time=timestamp(max(0, wall + (ends - now))),
        freshness=freshness(fact, now).value,  # type: ignore[arg-type] # the enums share their numbers
        collector_id=fact.collector,
    )


def _observation_message(fact: Fact, captured: WallTime) -> wire.Observation:
    key = fact.key
    message = wire.Observation(
        provider=key.provider,
        model=key.model,
        observe_time=timestamp(fact.observe_time if fact.observe_time is not None else max(0, captured)),
        sequence=fact.sequence,
    )
    if fact.ttl is not None:
        message.ttl.CopyFrom(duration(fact.ttl))
    end = None if fact.end_time is None else timestamp(fact.end_time)
    match fact.value:
        case Health(state, running, waiting, kv_usage):
            message.health.CopyFrom(
                wire.Health(state=state.value, running=running, waiting=waiting, kv_usage=kv_usage)  # type: ignore[arg-type]
            )
        case Quota(window, percent, unlimited, scope):
            remaining = None if unlimited else percent
            message.quota.CopyFrom(
                wire.Quota(window=window, remaining_percent=remaining, unlimited=unlimited, scope=scope, reset_time=end)
            )
        case Balance(currency, amount, unlimited, available, scope):
            message.balance.CopyFrom(
                wire.Balance(
                    currency=currency,
                    amount="" if unlimited else format(amount, "f"),
                    unlimited=unlimited,
                    available=available,
                    scope=scope,
                    reset_time=end,
                )
            )
        case Availability(state, blocker):
            message.availability.CopyFrom(
                wire.Availability(state=state.value, blocker=blocker.value, until_time=end)  # type: ignore[arg-type]
            )
    return message
