"""Fresh, stale or expired: three different answers (§3.1 of the contract)."""

from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    Balance,
    Fact,
    Freshness,
    Health,
    Instant,
    Nanos,
    Value,
)
from tidegate_server.core.policy import FreshnessLimits

FORGOTTEN_AFTER: Nanos = 24 * 3600 * SECOND
"""How long a quota or balance fact is kept after it stopped being fresh (§3.7)."""


def freshness(fact: Fact, now: Instant) -> Freshness:
    """Fresh while age ≤ min(its ttl, the configured limit) and now < its end; past its end it is unknown."""
    if now >= fact.ends_at:
        return Freshness.EXPIRED
    if now > fact.stale_at:
        return Freshness.STALE
    return Freshness.FRESH


def is_fresh(fact: Fact, now: Instant) -> bool:
    """The same as `freshness(fact, now) is FRESH`, for the hot path."""
    return now <= fact.stale_at and now < fact.ends_at


def is_forgotten(fact: Fact, now: Instant) -> bool:
    """Whether a quota or balance fact counts as never seen."""
    return now >= min(fact.stale_at, fact.ends_at) + FORGOTTEN_AFTER


def stale_at(value: Value, captured: Instant, ttl: Nanos | None, limits: FreshnessLimits) -> Instant:
    """The last instant at which a fact is fresh. The limits are upper ones: a ttl may only shorten them."""
    limit = limit_of(value, limits)
    return min(captured + (limit if ttl is None else min(ttl, limit)), NEVER)


def limit_of(value: Value, limits: FreshnessLimits) -> Nanos:
    """The configured limit for this kind of fact."""
    if isinstance(value, Health):
        return limits.health
    if isinstance(value, Balance):
        return limits.balance
    if isinstance(value, Availability):
        return limits.availability
    return limits.quota
