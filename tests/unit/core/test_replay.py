"""Logged admissions under another policy: a case worked by hand."""

import dataclasses
import json
from typing import Any

from tidegate_server.core.admission_detail import admission_detail
from tidegate_server.core.decide import decide
from tidegate_server.core.facts import group_all
from tidegate_server.core.model import SECOND, Balance, Fact, Quota, Request, Tier
from tidegate_server.core.policy import Candidate, FreshnessLimits, Policy, Route
from tidegate_server.core.replay import NO_ROUTE, Tally, replay
from tidegate_server.testing import fact

NOW = 5000 * SECOND
CLAUDE = Candidate("claude/m", "claude", "m", Tier.SUBSCRIPTION, "login", "b1")
CODEX = Candidate("codex/m", "codex", "m", Tier.SUBSCRIPTION, "login", "b2")
PAID = Candidate("paid", "router", "m", Tier.PAID, "env:KEY", "b3")
ROUTE = Route("managed/r", "routine", (CLAUDE, CODEX, PAID), "fp", 1000, 5000, allow_paid=True)


def quota(provider: str, percent: float, age: int = 1) -> Fact:
    return fact(provider, "", Quota("5h", percent), now=NOW, age=age * SECOND)


def logged(*facts: Fact) -> dict[str, Any]:
    request = Request("w", 100)
    decision = decide(ROUTE, request, None, group_all(facts), NOW)
    detail: dict[str, Any] = json.loads(json.dumps(admission_detail(ROUTE, request, None, decision)))
    return detail


def policy(*routes: Route, limits: FreshnessLimits | None = None) -> Policy:
    return Policy("rev", {r.name: r for r in routes}, {}, {}, (), limits or FreshnessLimits())


MONEY = fact("router", "", Balance("USD", available=True, unlimited=True), now=NOW)


def test_the_same_policy_answers_the_same() -> None:
    replayed = replay(logged(quota("claude", 50), quota("codex", 50)), policy(ROUTE))
    assert (replayed.before, replayed.after, replayed.changed) == ("claude/m", "claude/m", False)


def test_a_higher_reserve_moves_new_workers_and_a_candidate_that_was_not_needed_then_is_known_now() -> None:
    higher = dataclasses.replace(ROUTE, min_remaining_percent=30.0, fingerprint="fp2")
    replayed = replay(logged(quota("claude", 20), quota("codex", 50)), policy(higher))
    assert (replayed.before, replayed.after) == ("claude/m", "codex/m")


def test_money_is_counted() -> None:
    spent = logged(quota("claude", 0), quota("codex", 0), MONEY)
    refused = logged(quota("claude", 0), quota("codex", 50, age=1000), MONEY)
    stingy = policy(dataclasses.replace(ROUTE, allow_paid=False))
    tally = Tally()
    for detail in (spent, spent, refused):
        tally.add(replay(detail, stingy))
    changes = tally.routes()["managed/r"]
    assert (changes.total, changes.paid_before, changes.paid_after) == (3, 2, 0)
    assert changes.changes == {("paid", "NO_ELIGIBLE_CANDIDATE"): 2}


def test_other_limits_change_what_was_fresh() -> None:
    detail = logged(quota("claude", 50, age=100), quota("codex", 50, age=10))
    replayed = replay(detail, policy(ROUTE, limits=FreshnessLimits(quota=30 * SECOND)))
    assert (replayed.before, replayed.after) == ("claude/m", "codex/m")


def test_a_route_that_is_gone_is_told() -> None:
    assert replay(logged(quota("claude", 50)), policy()).after == NO_ROUTE
