"""What is known of each provider, counted: how many facts are fresh, stale or over, how old, and what is missing."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidegate_server.core.facts import NO_FACTS, FactGroup
from tidegate_server.core.freshness import freshness, is_forgotten
from tidegate_server.core.model import Balance, Freshness, Instant, Nanos, Quota, Tier
from tidegate_server.core.policy import Candidate, Policy
from tidegate_server.core.verdicts import Groups

KINDS = {Tier.LOCAL: ("health",), Tier.SUBSCRIPTION: ("quota",), Tier.PAID: ("balance", "availability")}
"""The kinds of facts that a provider of a tier needs (§4.3 of the contract)."""


class Census(NamedTuple):
    """The facts of one provider and kind. `unknown`: past their own end, or needed and never seen.

    `newest` and `oldest` are ages; None when there is no fact.
    """

    provider: str
    kind: str
    fresh: int
    stale: int
    unknown: int
    newest: Nanos | None
    oldest: Nanos | None


def take_census(policy: Policy, groups: Groups, now: Instant) -> list[Census]:
    """A row for each configured provider and kind that it needs or has. Linear in the number of facts."""
    counts: dict[tuple[str, str], list[int]] = {}
    ages: dict[tuple[str, str], list[Nanos]] = {}
    for (provider, _), group in groups.items():
        for fact in group.all:
            if isinstance(fact.value, Quota | Balance) and is_forgotten(fact, now):
                continue
            key = (provider, fact.key.kind)
            counts.setdefault(key, [0, 0, 0])[freshness(fact, now) - Freshness.FRESH] += 1
            age = max(0, now - fact.captured)
            known = ages.setdefault(key, [age, age])
            known[0], known[1] = min(known[0], age), max(known[1], age)
    missing = _never_seen(policy, groups)
    keys = {(p, kind) for p, known in policy.providers.items() for kind in KINDS[known.tier]} | set(counts)
    rows = []
    for key in sorted(keys):
        fresh, stale, ended = counts.get(key, (0, 0, 0))
        newest, oldest = ages.get(key, (None, None))
        rows.append(Census(*key, fresh, stale, ended + missing.get(key, 0), newest, oldest))
    return rows


def _never_seen(policy: Policy, groups: Groups) -> Mapping[tuple[str, str], int]:
    """How many needed facts no collector ever sent, by provider and kind; one of the account serves all its models."""
    missing: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for candidate in _candidates(policy):
        account, own = groups.get(candidate.account_key, NO_FACTS), groups.get(candidate.model_key, NO_FACTS)
        for kind, part in _needs(candidate, account, own):
            missing.setdefault((candidate.provider, kind), set()).add(part)
    return {key: len(parts) for key, parts in missing.items()}


def _candidates(policy: Policy) -> Iterable[Candidate]:
    return {candidate.model_key: candidate for candidate in policy.models.values()}.values()


def _needs(candidate: Candidate, account: FactGroup, own: FactGroup) -> Iterable[tuple[str, tuple[str, ...]]]:
    if candidate.tier is Tier.LOCAL:
        if account.health is None and own.health is None:
            yield "health", (candidate.model,)
    elif candidate.tier is Tier.SUBSCRIPTION:
        seen = {fact.key[3:] for fact in account.quotas + own.quotas}
        if not seen and not candidate.required_windows:
            yield "quota", ()
        yield from (("quota", window) for window in candidate.required_windows if window not in seen)
    else:
        balances = account.balances + own.balances
        if not balances:
            yield "balance", ()
        told = any(isinstance(f.value, Balance) and f.value.available for scope in balances for f in scope)
        if not told and account.available is None and own.available is None:
            yield "availability", ()
