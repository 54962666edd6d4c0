"""What a collector may say: facts, and the reading of one answer (§3 of the contract).

A value that an answer does not hold is None: unknown, never zero. Times are aware datetimes in UTC, lengths of time are
seconds, percentages run from 0 to 100.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class State(StrEnum):
    """The state of a local engine."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOADING = "loading"
    SLEEPING = "sleeping"


class Kind(StrEnum):
    """What keeps an account from being used: the blockers of an availability observation."""

    QUOTA_EXHAUSTED = "quota_exhausted"
    AUTH_FAILED = "auth_failed"
    ACCOUNT_DISABLED = "account_disabled"
    PROVIDER_DOWN = "provider_down"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What all facts have in common."""

    provider: str
    """The provider's alias in the server's configuration."""
    model: str = ""
    """The model as the provider spells it; empty: the whole account."""
    ttl: float | None = None
    """Seconds it holds; None: as long as the server lets its kind."""
    observed_at: datetime | None = None
    """When it was captured, if that was before the answer arrived (a log line, a cache)."""
    reason: str = ""
    """Why, in one word or phrase; for people and metrics, not on the wire."""
    skew: float | None = None
    """Seconds the provider's clock was ahead of ours where that mattered (over 5 s); its times are corrected by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine behind a page that several share (data parallel)."""

    engine: str
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Fact):
    """The state and load of a local engine."""

    state: State
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """0 to 1: the fullest engine, not the mean."""
    waiting_capacity: int | None = None
    """Those of `waiting` that wait for room, where the engine tells."""
    engines: tuple[Engine, ...] = ()
    slots_total: int | None = None
    slots_free: int | None = None
    loaded: bool | None = None
    """Whether the model is resident, where that is all the engine tells."""
    vram_fraction: float | None = None
    unload_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Fact):
    """One window of an account, by its length (`5h`, `7d`) or the provider's name for it."""

    window: str
    remaining: float | None = None
    """Percent, clamped to 0 to 100; None when unlimited."""
    unlimited: bool = False
    resets_at: datetime | None = None
    scope: str = ""
    raw_used: float | None = None
    """Percent used as the provider said it, where clamping hid something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance(Fact):
    """Money, in one currency and one scope. Currencies are neither summed nor converted."""

    currency: str
    amount: Decimal | None = None
    unlimited: bool = False
    available: bool | None = None
    scope: str = ""
    """Empty: the account; else `key`, `extra_usage`, …"""
    resets_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker(Fact):
    """Something said no."""

    kind: Kind
    until: datetime | None = None
    scope: str = ""
    """A part of the account that is no single model, e.g. `models:*:free`."""
    upstream: str = ""
    """The upstream behind an aggregator that said it."""
    vendor: str = ""
    """Set when it is the vendor's trouble, shared by all its accounts."""
    window: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared(Fact):
    """A call that succeeded: this kind of blocker no longer stands."""

    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory(Fact):
    """A status page's word. It blocks nothing and is not sent to the server."""

    indicator: str
    components: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that one answer told.

    Attributes:
        facts: what to send. Empty with an `error`: send nothing and let the old facts age.
        error: the collector's own failure, one sentence without any of the payload; it is no fact.
        dropped: windows and fields that were left out because they were malformed, past their reset or placeholders.
        complete: the answer names every window and scope of the account, so what it no longer names is retracted.
        named: (window, scope) pairs that it names, those that were dropped included.
        proves: kinds of blocker that a success like this one clears, also where it told nothing else.
        retry_after: seconds to wait before this source is asked again, where the answer demands it.
    """

    facts: tuple[Fact, ...] = ()
    error: str = ""
    dropped: tuple[str, ...] = ()
    complete: bool = False
    named: frozenset[tuple[str, str]] = frozenset()
    proves: frozenset[Kind] = frozenset()
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the source answered as it should."""
        return not self.error


def failure(error: str, *, retry_after: float | None = None) -> Reading:
    """Return the reading of an answer that told nothing."""
    return Reading(error=error, retry_after=retry_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose answer is parsed: what the configuration, or the gateway that handed it over, knows about it."""

    provider: str
    model: str = ""
    """The model of the request, or the one an engine serves when its pages do not name it."""
    models: tuple[str, ...] = ()
    """Models that are to be reported on even when an answer does not list them."""
    siblings: tuple[str, ...] = ()
    """Other accounts of the same vendor, which share the vendor's own trouble."""
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def merged(readings: Iterable[Reading]) -> Reading:
    """Join readings of one source's several endpoints."""
    parts = list(readings)
    return Reading(
        facts=tuple(fact for part in parts for fact in part.facts),
        error="; ".join(part.error for part in parts if part.error),
        dropped=tuple(note for part in parts for note in part.dropped),
        complete=all(part.complete for part in parts),
        named=frozenset().union(*(part.named for part in parts)),
        proves=frozenset.intersection(*(part.proves for part in parts)) if parts else frozenset(),
        retry_after=max((part.retry_after for part in parts if part.retry_after is not None), default=None),
    )
