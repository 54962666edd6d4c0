"""The states that a candidate can be in, as the contract names them, each with facts that put it there.

What a state means (does it say yes, which blockers does it confirm) is written here by hand, from the contract's table
and not by asking the code that is to be proved.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from tidegate_server.core.facts import fact_key
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
from tidegate_server.core.policy import Candidate, Route

NOW: Instant = 1_000_000 * SECOND
_LONG = 10_000 * SECOND


class State(NamedTuple):
    """One state. `admits`: all that the candidate needs is fresh and says yes. `confirms`: the kinds of fresh blockers.

    `admits_pinned` differs where only new workers are kept away (saturation). `detail`: the contract's table puts this
    state into the same row as another one; it is combined with a few states of the other candidates only.
    """

    name: str
    facts: tuple[Fact, ...]
    admits: bool = False
    confirms: frozenset[Blocker] = frozenset()
    admits_pinned: bool = False
    detail: bool = False


def states_of(candidate: Candidate, route: Route) -> list[State]:
    """Every state that this candidate's facts can put it in, as far as the policy can tell two states apart."""
    makers = {Tier.LOCAL: _local, Tier.SUBSCRIPTION: _subscription, Tier.PAID: _paid}
    own = list(makers[candidate.tier](candidate, route))
    good = next(state for state in own if state.admits)
    return own + list(_rows(candidate, good))


def _fact(candidate: Candidate, value: Value, *, stale: bool = False, ended: bool = False, age: int = 1) -> Fact:
    captured = NOW - age * SECOND
    return Fact(
        key=fact_key(candidate.provider, candidate.model, value),
        value=value,
        captured=captured,
        stale_at=NOW - SECOND // 2 if stale else NOW + _LONG,
        ends_at=NOW if ended else NEVER,
    )


def _local(candidate: Candidate, _: Route) -> Iterator[State]:
    def health(state: HealthState, *, stale: bool = False, waiting: int = 0) -> tuple[Fact, ...]:
        return (_fact(candidate, Health(state, running=1, waiting=waiting, kv_usage=0.0), stale=stale),)

    yield State("unknown", ())
    yield State("healthy", health(HealthState.HEALTHY), admits=True, admits_pinned=True)
    yield State("healthy but stale", health(HealthState.HEALTHY, stale=True))
    yield State("state unknown", health(HealthState.UNKNOWN), detail=True)
    for bad in (HealthState.UNHEALTHY, HealthState.LOADING, HealthState.SLEEPING):
        yield State(bad.name.lower(), health(bad), detail=bad is not HealthState.UNHEALTHY)
    saturation = candidate.saturation
    if saturation is not None and saturation.max_waiting is not None:
        yield State("saturated", health(HealthState.HEALTHY, waiting=saturation.max_waiting + 1), admits_pinned=True)


def _subscription(candidate: Candidate, route: Route) -> Iterator[State]:
    windows = candidate.required_windows or (("5h", ""), ("7d", ""))

    def quota(
        percent: float, *, last: float | None = None, stale: bool = False, ended: bool = False
    ) -> tuple[Fact, ...]:
        """All windows at `percent`, the last one at `last`, or not fresh."""
        facts = [_fact(candidate, Quota(window, percent, scope=scope)) for window, scope in windows[:-1]]
        window, scope = windows[-1]
        value = Quota(window, percent if last is None else last, scope=scope)
        return (*facts, _fact(candidate, value, stale=stale, ended=ended))

    reserve = route.min_remaining_percent
    yield State("unknown", ())
    yield State("above the reserve", quota(100.0), admits=True, admits_pinned=True)
    yield State("above the reserve, one window stale", quota(100.0, stale=True))
    yield State("above the reserve, one window past its reset", quota(100.0, ended=True), detail=True)
    yield State("one window exhausted", quota(100.0, last=0.0), confirms=frozenset({Blocker.QUOTA_EXHAUSTED}))
    yield State("one window exhausted, stale", quota(100.0, last=0.0, stale=True))
    yield State("one window exhausted, past its reset", quota(100.0, last=0.0, ended=True))
    if reserve > 0:
        yield State(
            "one window at the reserve", quota(100.0, last=reserve), confirms=frozenset({Blocker.QUOTA_BELOW_RESERVE})
        )
    if candidate.required_windows:
        yield State("one required window never seen", quota(100.0)[:-1], detail=True)


def _paid(candidate: Candidate, _: Route) -> Iterator[State]:
    def balance(amount: str, *, available: bool | None = True, stale: bool = False) -> tuple[Fact, ...]:
        return (_fact(candidate, Balance("USD", Decimal(amount), available=available), stale=stale),)

    yield State("unknown", ())
    yield State("funded and available", balance("5"), admits=True, admits_pinned=True)
    yield State("funded, stale", balance("5", stale=True))
    yield State("funded, availability unknown", balance("5", available=None))
    yield State("funded, not available", balance("5", available=False), detail=True)
    yield State("empty", balance("0"))


def _rows(candidate: Candidate, good: State) -> Iterator[State]:
    """A blocked row beside facts that say yes: one is enough, whatever the rest says."""

    def row(blocker: Blocker, *, stale: bool = False) -> tuple[Fact, ...]:
        # Newer than the good facts: an older QUOTA_EXHAUSTED would yield to them.
        value = Availability(AvailabilityState.BLOCKED, blocker)
        return (*good.facts, _fact(candidate, value, stale=stale, age=0))

    subscription = candidate.tier is Tier.SUBSCRIPTION
    for blocker in (Blocker.QUOTA_EXHAUSTED, Blocker.AUTH_FAILED, Blocker.ACCOUNT_DISABLED, Blocker.PROVIDER_DOWN):
        confirms = frozenset({blocker}) if subscription else frozenset()
        same = not subscription or blocker is Blocker.QUOTA_EXHAUSTED
        yield State(f"blocked: {blocker.name}", row(blocker), confirms=confirms, detail=same)
        yield State(f"blocked: {blocker.name}, stale", row(blocker, stale=True), detail=True)
    for blocker in (Blocker.RATE_LIMITED, Blocker.OVERLOADED):
        yield State(f"busy: {blocker.name}", row(blocker), detail=blocker is Blocker.OVERLOADED)
