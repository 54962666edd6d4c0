"""Worlds to try the policy in: a route, and the facts that a server received, around every limit of the contract.

One builder serves two drivers: hypothesis, which shrinks what it finds, and a seeded generator, which is fast.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple, Protocol, TypeVar

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
    Instant,
    Quota,
    Tier,
    Value,
)
from tidegate_server.core.policy import PAID_ON_ALLOWED, PAID_ON_DEFAULT, Candidate, Route, Saturation

from tests.property.naive_facts import DAY, key_of
from tests.property.naive_policy import MIB

NOW: Instant = 1_000_000 * SECOND
WALL = 1_790_000_000 * SECOND
LIMIT = 60 * SECOND
TIERS = {"gpu": Tier.LOCAL, "box": Tier.LOCAL, "s1": Tier.SUBSCRIPTION, "s2": Tier.SUBSCRIPTION, "money": Tier.PAID}
MODELS = ("m", "n")
KINDS = [Blocker(number) for number in range(1, 7)]


class World(NamedTuple):
    """A route, and every fact that was ever received, in order of arrival."""

    route: Route
    arrivals: list[Fact]


T = TypeVar("T")


class Choose(Protocol):
    """Picks one of several: hypothesis does, which shrinks what it finds, or a seeded generator, which is fast."""

    def __call__(self, options: Sequence[T], /) -> T: ...


VALUES: dict[str, list[Value]] = {
    "health": [
        Health(state, waiting=waiting, kv_usage=usage)
        for state in (HealthState.HEALTHY, *HealthState)
        for waiting in (None, 5, 6)
        for usage in (None, 0.8, 0.81)
    ],
    "quota": [
        Quota(window, percent, unlimited, scope)
        for window in ("5h", "7d")
        for percent in (0.0, 1.0, 2.0, 2.5, 15.0, 50.0, 100.0)
        for unlimited in (False, False, False, True)
        for scope in ("", "", "chat")
    ],
    "balance": [
        Balance(currency, amount, unlimited, available, scope)
        for currency in ("USD", "EUR")
        for amount in (Decimal(-1), Decimal(0), Decimal("0.01"), Decimal(5))
        for unlimited in (False, False, False, True)
        for available in (None, True, True, False)
        for scope in ("", "", "key")
    ],
    "availability": [
        *(Availability(AvailabilityState.BLOCKED, kind) for kind in KINDS * 2),
        *(Availability(AvailabilityState.AVAILABLE, kind) for kind in (Blocker.NONE, Blocker.NONE, *KINDS)),
        *(Availability(AvailabilityState.UNKNOWN, kind) for kind in (Blocker.NONE, *KINDS)),
    ],
}
FITTING = {
    Tier.LOCAL: ["health", "health", "availability", "quota"],
    Tier.SUBSCRIPTION: ["quota", "quota", "quota", "availability", "health"],
    Tier.PAID: ["balance", "balance", "availability", "quota"],
}
AGES = [0, 1, 2, 3, 10 * SECOND, LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + DAY, LIMIT + DAY + 1]
ENDS = [NEVER] * 6 + [NOW - DAY - 1, NOW - DAY, NOW - 1, NOW, NOW + 1, NOW + 3600 * SECOND]


def any_fact(choose: Choose, kind: str = "") -> Fact:
    """Any fact (of a kind), its age around the limits, its end around now, and often in a tie with another one."""
    provider = choose(list(TIERS))
    value = choose(VALUES[kind or choose(FITTING[TIERS[provider]])])
    captured = NOW - choose(AGES)
    return Fact(
        key=key_of(provider, choose(["", "", *MODELS]), value),
        value=value,
        captured=captured,
        stale_at=captured + choose([LIMIT, LIMIT, LIMIT, LIMIT // 2]),
        ends_at=NEVER if isinstance(value, Health) else choose(ENDS),
        observe_time=choose([None, None, WALL - 7, WALL - 8]),
        sequence=choose([0, 1, 2]),
        collector=choose(["a", "b"]),
    )


GOOD: list[tuple[str, Value]] = [
    ("gpu", Health(HealthState.HEALTHY)),
    ("box", Health(HealthState.HEALTHY)),
    ("s1", Quota("5h", 50.0)),
    ("s1", Quota("7d", 50.0)),
    ("s2", Quota("5h", 50.0)),
    ("s2", Quota("7d", 50.0)),
    ("money", Balance("USD", Decimal(5), available=True)),
]
"""What makes every candidate ELIGIBLE."""

SPENT: list[tuple[str, Value]] = [
    ("gpu", Health(HealthState.LOADING)),
    ("s1", Quota("5h", 0.0)),
    ("s2", Quota("7d", 0.0)),
    ("money", Balance("USD", Decimal(5), available=True)),
]
"""Every subscription exhausted, money at hand: the state in which the default policy pays."""


def any_ground(choose: Choose) -> list[Fact]:
    """A good ground, a spent one or none; some of it changed to what is only just (not) good, old or missing."""
    ground = choose([[], GOOD, GOOD, SPENT, SPENT])
    age = choose([5, 5, 5, LIMIT, LIMIT + 1])
    facts = []
    for provider, good in ground:
        value = good
        fate = choose(
            ["as it is"] * 7 + ["another value", "another value", "missing", "a row beside it", "a row beside it"]
        )
        if fate == "another value":
            kind = key_of(provider, "", good).kind
            value = choose(VALUES[kind])
        if fate != "missing":
            key = key_of(provider, "", value)
            facts.append(Fact(key, value, NOW - age, NOW - age + LIMIT, collector="a"))
        if fate == "a row beside it":
            row = choose(VALUES["availability"])
            facts.append(Fact(key_of(provider, "", row), row, NOW - 1, NOW - 1 + LIMIT, collector="a"))
    return facts


def any_route(choose: Choose, must_have: Sequence[Tier] = ()) -> Route:
    """One to six candidates of all tiers, more with `must_have`, and any flags that a configuration may hold."""
    offered = [(provider, model) for provider in TIERS for model in MODELS]
    names = list(dict.fromkeys(choose(offered) for _ in range(choose([1, 2, 3, 3, 4, 5, 6]))))
    names += [(p, "m") for p in TIERS if TIERS[p] in must_have and (p, "m") not in names]
    required = choose([(), (), (("5h", ""),), (("5h", ""), ("7d", "")), (("7d", "chat"),)])
    saturation = choose([Saturation(5, 0.8), Saturation(5, 0.8), Saturation(max_waiting=5), None])
    candidates = tuple(
        Candidate(
            name=f"{provider}/{model}",
            provider=provider,
            model=model,
            tier=TIERS[provider],
            credential_source=provider,
            binding_fingerprint=f"binding of {provider}/{model}",
            reasoning_efforts=choose([("low", "high"), ("low", "high"), ("low",)]),
            mapped_effort=choose(["", "", "", "", "", "low", "max"]),
            required_windows=required if TIERS[provider] is Tier.SUBSCRIPTION else (),
            saturation=saturation if TIERS[provider] is Tier.LOCAL else None,
        )
        for provider, model in names
    )
    allow_paid = choose([True, True, False])
    subscriptions = any(c.tier is Tier.SUBSCRIPTION for c in candidates)
    return Route(
        name="managed/r",
        purpose="routine",
        candidates=candidates,
        fingerprint="the policy",
        context_window=1,
        max_context_bytes=choose([100, 2 * MIB, 8 * MIB]),
        min_remaining_percent=choose([0.0, 2.0, 15.0]),
        allow_paid=allow_paid,
        prefer_paid_flash=allow_paid and (choose([False, False, True]) or not subscriptions),  # §2: else it is refused
        paid_on=choose(
            [PAID_ON_DEFAULT, PAID_ON_DEFAULT, PAID_ON_ALLOWED, *(frozenset({b}) for b in sorted(PAID_ON_ALLOWED))]
        ),
    )


def any_world(choose: Choose, must_have: Sequence[Tier] = ()) -> World:
    """A route, its ground, and any facts on top."""
    ground = any_ground(choose)
    return World(any_route(choose, must_have), ground + [any_fact(choose) for _ in range(choose([0, 0, 1, 2, 3, 6]))])
