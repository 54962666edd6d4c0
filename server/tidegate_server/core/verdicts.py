"""A candidate's verdict: the first row of §4.3 of the contract that applies.

`judge` reads facts and nothing else; `evaluate` adds what the request and the paid policy say. Facts of the account and
of the model both count. Whatever was read is in the evaluation, so that it can be shown, logged and computed again.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tidegate_server.core.facts import NO_FACTS, FactGroup, shows_room
from tidegate_server.core.freshness import is_forgotten, is_fresh
from tidegate_server.core.model import (
    NEVER,
    Availability,
    AvailabilityState,
    Blocker,
    CandidateVerdict,
    Fact,
    Health,
    HealthState,
    Instant,
    Quota,
    Tier,
)
from tidegate_server.core.policy import Candidate, Route

Groups = Mapping[tuple[str, str], FactGroup]

TRANSIENT = frozenset({Blocker.RATE_LIMITED, Blocker.OVERLOADED})
"""Blockers that pass by themselves: they make a candidate BUSY, and never confirm anything."""

NOT_HEALTHY = {
    HealthState.UNHEALTHY: Blocker.UNHEALTHY,
    HealthState.LOADING: Blocker.LOADING,
    HealthState.SLEEPING: Blocker.SLEEPING,
}


class Block(NamedTuple):
    """A fact that says no, and how it says it."""

    blocker: Blocker
    fact: Fact


class Doubt(NamedTuple):
    """A fact that is needed and missing: FACT_UNKNOWN (never seen, or ended) or FACT_STALE. `part` as in the key."""

    blocker: Blocker
    kind: str
    part: str = ""


class Evaluation(NamedTuple):
    """What one candidate's facts say.

    `blocker` and `deciding` are what stands out: the blocking fact that ends last. `until` is the latest known end
    among the blocking facts. `confirming` are the fresh facts of a kind in the route's `paidOn`; `doubt` is what is
    missing.
    """

    candidate: Candidate
    verdict: CandidateVerdict
    blocker: Blocker = Blocker.NONE
    confirming: tuple[Block, ...] = ()
    until: Instant | None = None
    deciding: Fact | None = None
    doubt: Doubt | None = None
    facts: tuple[Fact, ...] = ()

    @property
    def confirmed(self) -> bool:
        """Whether the candidate has a confirmed blocker. It comes from facts alone."""
        return bool(self.confirming)

    @property
    def is_doubtful(self) -> bool:
        """Whether a fact that is needed is unknown or stale: a cold wait may help."""
        return self.verdict is CandidateVerdict.UNKNOWN or self.verdict is CandidateVerdict.STALE


class _Findings:
    """What the facts of one candidate say, row by row."""

    __slots__ = ("busy", "no", "stale", "unknown")

    def __init__(self) -> None:
        self.no: list[Block] = []
        self.busy: list[Block] = []
        self.unknown: Doubt | None = None
        self.stale: Doubt | None = None

    def doubt(self, fact: Fact | None, now: Instant, kind: str, part: str = "") -> None:
        """A needed fact was never seen or has ended (unknown), or is past its limit (stale)."""
        if fact is None or now >= fact.ends_at:
            self.unknown = self.unknown or Doubt(Blocker.FACT_UNKNOWN, kind, part)
        else:
            self.stale = self.stale or Doubt(Blocker.FACT_STALE, kind, part)


def evaluate(facts_say: Evaluation, effort: str, paid: Blocker = Blocker.NONE) -> Evaluation:
    """The verdict for a new worker. `paid` is why a paid candidate is not authorized (§4.4), NONE when it is."""
    candidate = facts_say.candidate
    wanted = candidate.mapped_effort or effort
    if wanted and wanted not in candidate.reasoning_efforts:
        return facts_say._replace(verdict=CandidateVerdict.UNSUITABLE, blocker=Blocker.EFFORT_UNSUPPORTED, until=None)
    if paid:
        return facts_say._replace(verdict=CandidateVerdict.NOT_AUTHORIZED, blocker=paid, until=None)
    return facts_say


def judge(candidate: Candidate, route: Route, groups: Groups, now: Instant, *, pinned: bool = False) -> Evaluation:
    """The verdict of the facts alone: effort and authorization aside. Saturation steers new workers only (§4.5)."""
    account = groups.get(candidate.account_key, NO_FACTS)
    own = groups.get(candidate.model_key, NO_FACTS)
    found = _Findings()
    if candidate.tier is Tier.LOCAL:
        _read_health(account, own, now, found)
    elif candidate.tier is Tier.SUBSCRIPTION:
        _read_quota(candidate, route.min_remaining_percent, account.quotas + own.quotas, now, found)
    else:
        _read_balance(account, own, now, found)
    if account.rows or own.rows:
        _read_rows(candidate, account, own, now, found)
    if candidate.saturation is not None and not pinned:
        _read_load(candidate, account, own, now, found)

    facts = account.all + own.all
    if found.no:
        return _blocked(candidate, CandidateVerdict.BLOCKED, found.no, facts, route)
    if found.unknown:
        return Evaluation(candidate, CandidateVerdict.UNKNOWN, Blocker.FACT_UNKNOWN, doubt=found.unknown, facts=facts)
    if found.stale:
        return Evaluation(candidate, CandidateVerdict.STALE, Blocker.FACT_STALE, doubt=found.stale, facts=facts)
    if found.busy:
        return _blocked(candidate, CandidateVerdict.BUSY, found.busy, facts, route)
    return Evaluation(candidate, CandidateVerdict.ELIGIBLE, facts=facts)


def _blocked(
    candidate: Candidate, verdict: CandidateVerdict, blocks: list[Block], facts: tuple[Fact, ...], route: Route
) -> Evaluation:
    out, until = blocks[0], None
    for block in blocks:  # a loop, for this stands on the hot path of a paid admission
        ends_at = block.fact.ends_at
        if ends_at > out.fact.ends_at:
            out = block
        if ends_at < NEVER and (until is None or ends_at > until):
            until = ends_at
    confirming: tuple[Block, ...] = ()
    if candidate.tier is Tier.SUBSCRIPTION and verdict is CandidateVerdict.BLOCKED:
        confirming = tuple([block for block in blocks if block.blocker in route.paid_on])
    return Evaluation(candidate, verdict, out.blocker, confirming, until, out.fact, None, facts)


def _read_health(account: FactGroup, own: FactGroup, now: Instant, found: _Findings) -> None:
    """Local: a HEALTHY health fact. A fresh one that is not healthy blocks; an unknown state is no answer at all."""
    healthy, stale = False, None
    for fact in (account.health, own.health):
        if fact is None:
            continue
        if not is_fresh(fact, now):
            stale = fact
            continue
        health = fact.value
        assert isinstance(health, Health)
        if health.state is HealthState.HEALTHY:
            healthy = True
        elif health.state in NOT_HEALTHY:
            found.no.append(Block(NOT_HEALTHY[health.state], fact))
    if not healthy and not found.no:
        found.doubt(stale, now, "health")


def _read_quota(candidate: Candidate, reserve: float, quotas: tuple[Fact, ...], now: Instant, found: _Findings) -> None:
    """Subscription: each required window (none named: each one seen) fresh and above the reserve, or unlimited.

    A fresh window that says no counts even when it is not required. A scoped window counts only when it is named.
    """
    required = candidate.required_windows
    seen = set()
    for fact in quotas:
        window = fact.key[3:]
        named = window in required
        if window[1] and not named:
            continue
        if is_fresh(fact, now):
            blocker = _window_says_no(fact, reserve)
            if blocker is not None:
                found.no.append(Block(blocker, fact))
        elif is_forgotten(fact, now):
            continue
        elif named or not required:
            found.doubt(fact, now, "quota", window[0])
        seen.add(window)
    if not seen and not required:
        found.doubt(None, now, "quota")
    for window in required:
        if window not in seen:
            found.doubt(None, now, "quota", window[0])


def _window_says_no(fact: Fact, reserve: float) -> Blocker | None:
    """A window at 0 is QUOTA_EXHAUSTED, above 0 up to the reserve QUOTA_BELOW_RESERVE."""
    quota = fact.value
    assert isinstance(quota, Quota)
    if quota.unlimited or quota.remaining_percent > reserve:
        return None
    return Blocker.QUOTA_BELOW_RESERVE if quota.remaining_percent > 0 else Blocker.QUOTA_EXHAUSTED


def _read_balance(account: FactGroup, own: FactGroup, now: Instant, found: _Findings) -> None:
    """Paid: in every balance scope seen money in some currency, and the word that the account may be used."""
    seen_any = False
    words = [row for row in (account.available, own.available) if row is not None]
    for currencies in account.balances + own.balances:
        fresh = [fact for fact in currencies if is_fresh(fact, now)]
        seen = fresh if len(fresh) == len(currencies) else [f for f in currencies if not is_forgotten(f, now)]
        words += [fact for fact in seen if fact.value.available is True]  # type: ignore[union-attr] # a Balance
        seen_any = seen_any or bool(seen)
        if any(shows_room(fact) for fact in fresh):
            continue
        if len(fresh) == len(seen):
            found.no.extend(Block(Blocker.BALANCE_EMPTY, fact) for fact in fresh)
        for fact in seen:
            if fact not in fresh:
                found.doubt(fact, now, "balance", fact.key.part)
    if not seen_any:
        found.doubt(None, now, "balance")
    if not any(is_fresh(word, now) for word in words):
        stale = next((word for word in words if now < word.ends_at), None)
        found.doubt(stale, now, "availability")


def _read_rows(candidate: Candidate, account: FactGroup, own: FactGroup, now: Instant, found: _Findings) -> None:
    """Availability rows that are not cleared (§3.6)."""
    for row in account.rows + own.rows:
        value = row.value
        assert isinstance(value, Availability)
        if now >= row.ends_at:
            continue
        if value.blocker is Blocker.QUOTA_EXHAUSTED and _is_lifted(row, candidate, account, own, now):
            continue
        if now > row.stale_at and value.blocker in TRANSIENT and row.ends_at == NEVER:
            continue
        if value.state is AvailabilityState.UNKNOWN:
            found.doubt(None, now, "availability", value.blocker.name)
        elif now > row.stale_at:
            found.doubt(row, now, "availability", value.blocker.name)
        elif value.blocker in TRANSIENT:
            found.busy.append(Block(value.blocker, row))
        else:
            found.no.append(Block(value.blocker, row))


def _is_lifted(row: Fact, candidate: Candidate, account: FactGroup, own: FactGroup, now: Instant) -> bool:
    """QUOTA_EXHAUSTED yields once every window that is needed (paid: every balance scope) has a newer fact above 0."""
    if candidate.tier is Tier.PAID:
        scopes = [[f for f in scope if not is_forgotten(f, now)] for scope in account.balances + own.balances]
        scopes = [scope for scope in scopes if scope]
        return bool(scopes) and all(any(f.captured > row.captured and shows_room(f) for f in s) for s in scopes)
    required = candidate.required_windows
    needed = [
        fact
        for fact in account.quotas + own.quotas
        if (fact.key[3:] in required if required else not fact.key.scope) and not is_forgotten(fact, now)
    ]
    names = {fact.key[3:] for fact in needed}
    if not needed or not names.issuperset(required):
        return False
    return all(fact.captured > row.captured and _window_says_no(fact, 0.0) is None for fact in needed)


def _read_load(candidate: Candidate, account: FactGroup, own: FactGroup, now: Instant, found: _Findings) -> None:
    """Saturated: more requests waiting, or a fuller cache, than the configuration allows for new workers."""
    limit = candidate.saturation
    assert limit is not None
    for fact in (account.health, own.health):
        if fact is None or not is_fresh(fact, now):
            continue
        health = fact.value
        assert isinstance(health, Health)
        waits = limit.max_waiting is not None and health.waiting is not None and health.waiting > limit.max_waiting
        full = limit.max_kv_usage is not None and health.kv_usage is not None and health.kv_usage > limit.max_kv_usage
        if waits or full:
            found.busy.append(Block(Blocker.SATURATED, fact))
