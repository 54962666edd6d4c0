"""Facts on the way to the functions of functions/facts.lua and back.

Between the two lies a change of clocks: what is stored are microseconds by the server's clock, what is here are
instants of this process's monotonic one. How far they are apart is known within bounds, and of these always the one is
taken that makes a fact older than it is, never younger. A batch also says how old each fact was when it was sent, so
that a step of the server's clock cannot make it younger, either.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from tidegate_server.core.facts import CLEARED_BY_AVAILABLE
from tidegate_server.core.freshness import stale_at
from tidegate_server.core.model import (
    NEVER,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    FactKey,
    Health,
    HealthState,
    Instant,
    Nanos,
    Quota,
    Value,
)
from tidegate_server.core.policy import FreshnessLimits

MICROSECOND: Nanos = 1_000
_ORDER_OFFSET = 1 << 63  # so that text of fixed width sorts like the numbers, negative ones too
_SAMPLES = 20


class ServerClock:
    """How far the server's clock is from ours, as the last looks at it bound it from both sides."""

    def __init__(self) -> None:
        self._bounds: deque[tuple[Nanos, Nanos]] = deque(maxlen=_SAMPLES)
        self._offset: Nanos = 0
        self._upper: Nanos = 0

    def saw(self, asked: Instant, server: int, answered: Instant) -> None:
        """The server's clock showed `server` microseconds at some instant between these two of ours."""
        lower, upper = asked - (server + 1) * MICROSECOND, answered - server * MICROSECOND
        if any(lower > known_upper or upper < known_lower for known_lower, known_upper in self._bounds):
            self._bounds.clear()  # its clock was set; what was read before is converted already
        self._bounds.append((lower, upper))
        self._offset = max(low for low, _ in self._bounds)
        self._upper = min(high for _, high in self._bounds)

    @property
    def is_known(self) -> bool:
        """Whether it was ever seen."""
        return bool(self._bounds)

    def server(self, local: Instant) -> int:
        """The server's time at our instant, at the earliest."""
        return (local - self._upper) // MICROSECOND

    def local(self, server: int) -> Instant:
        """Our instant of that time of the server, at the latest."""
        return server * MICROSECOND + self._offset


def field_of(key: FactKey) -> str:
    """The field of a fact in the table."""
    return f"f:{json.dumps(key, ensure_ascii=False)}"


def key_of(field: bytes | str) -> FactKey:
    """The fact that a field is about."""
    text = field.decode() if isinstance(field, bytes) else field
    return FactKey(*json.loads(text.removeprefix("f:")))


def _class_of(value: Value) -> str:
    if not isinstance(value, Availability):
        return ""
    if value.state is AvailabilityState.AVAILABLE:
        return "" if value.blocker else "available"
    if not value.blocker:
        return ""
    return "cleared" if value.blocker in CLEARED_BY_AVAILABLE else "blocked"


def put_words(fact: Fact, now: Instant, clock: ServerClock) -> list[Any]:
    """One item of a batch for the function `change`."""
    row_class = _class_of(fact.value)
    provider, model = fact.key[:2]
    related: list[str] = []
    if row_class == "available":
        related = [field_of(FactKey(provider, model, "availability", kind.name)) for kind in CLEARED_BY_AVAILABLE]
    elif row_class == "cleared":
        related = [field_of(FactKey(provider, model, "availability"))]
    ends = ends_in = -1
    if fact.ends_at < NEVER:
        ends, ends_in = max(0, clock.server(fact.ends_at)), max(0, (fact.ends_at - now) // MICROSECOND)
    return [
        field_of(fact.key),
        related,
        clock.server(fact.captured),
        max(0, -((fact.captured - now) // MICROSECOND)),
        ends,
        ends_in,
        f"{fact.sequence + _ORDER_OFFSET:020d}",
        "" if fact.observe_time is None else str(fact.observe_time),
        row_class,
        fact.identity,
        fact.collector,
        json.dumps([_value_words(fact.value), fact.end_time, fact.ttl, fact.sequence], ensure_ascii=False),
    ]


def read_fact(field: bytes | str, packed: bytes | str, clock: ServerClock, limits: FreshnessLimits) -> Fact:
    """A fact as it is stored. Raises ValueError, KeyError or TypeError for what is none."""
    captured, ends, _, observed, _, identity, collector, body = json.loads(packed)
    value_words, end_time, ttl, sequence = json.loads(body)
    value = _value_of(value_words)
    instant = clock.local(captured)
    return Fact(
        key_of(field),
        value,
        instant,
        stale_at(value, instant, ttl, limits),
        NEVER if ends < 0 else clock.local(ends),
        int(observed) if observed else None,
        end_time,
        ttl,
        sequence,
        collector,
        identity,
    )


def _value_words(value: Value) -> list[Any]:
    match value:
        case Health():
            return ["health", int(value.state), value.running, value.waiting, value.kv_usage]
        case Quota():
            return ["quota", value.window, value.remaining_percent, value.unlimited, value.scope]
        case Balance():
            return ["balance", value.currency, str(value.amount), value.unlimited, value.available, value.scope]
        case Availability():
            return ["availability", int(value.state), int(value.blocker)]


def _value_of(words: list[Any]) -> Value:
    kind, *rest = words
    return _READERS[kind](*rest)


_READERS: Mapping[str, Callable[..., Value]] = {
    "health": lambda state, running, waiting, usage: Health(HealthState(state), running, waiting, usage),
    "quota": Quota,
    "balance": lambda currency, amount, *rest: Balance(currency, Decimal(amount), *rest),
    "availability": lambda state, blocker: Availability(AvailabilityState(state), Blocker(blocker)),
}
