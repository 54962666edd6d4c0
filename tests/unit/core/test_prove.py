"""`prove` finds nothing in the policy as it is, and finds each promise broken in a policy that breaks it."""

import dataclasses
from collections.abc import Callable

import pytest
from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.model import Blocker, CandidateVerdict, PinState, Request, StoredPin, Tier, Verdict
from tidegate_server.core.policy import Candidate, Route, Saturation
from tidegate_server.core.prove import PROMISES, prove_route
from tidegate_server.core.verdicts import Groups

Decide = Callable[[Route, Request, StoredPin | None, Groups, int], Decision]

LOCAL = Candidate("gpu/m", "gpu", "m", Tier.LOCAL, "none", "b1", ("low", "high"), saturation=Saturation(max_waiting=5))
CLAUDE = Candidate(
    "claude/m", "claude", "m", Tier.SUBSCRIPTION, "login", "b2", ("low",), required_windows=(("5h", ""), ("7d", ""))
)
CODEX = Candidate("codex/m", "codex", "m", Tier.SUBSCRIPTION, "login", "b3", ("low",))
PAID = Candidate("paid", "router", "m", Tier.PAID, "env:KEY", "b4", ("low",))


def a_route(*candidates: Candidate, purpose: str = "routine", allow_paid: bool = True, prefer: bool = False) -> Route:
    return Route("managed/r", purpose, candidates, "fp", 1000, 5000, allow_paid=allow_paid, prefer_paid_flash=prefer)


ROUTINE = a_route(LOCAL, CLAUDE, PAID)


@pytest.mark.parametrize(
    "route",
    [
        ROUTINE,
        a_route(LOCAL, CLAUDE, PAID, allow_paid=False),
        a_route(LOCAL, PAID, prefer=True),
        a_route(CLAUDE, CODEX, purpose="strong"),
        a_route(LOCAL),
    ],
    ids=lambda route: "+".join(c.name for c in route.candidates),
)
def test_every_promise_holds(route: Route) -> None:
    proof = prove_route(route)
    assert proof.counterexample is None
    assert proof.checked > 50 * len(route.candidates)


def test_who_can_win_is_told() -> None:
    assert prove_route(ROUTINE).never_wins == ()
    assert prove_route(a_route(LOCAL, CLAUDE, PAID, allow_paid=False)).never_wins == ("paid",)
    twin = dataclasses.replace(LOCAL, name="gpu2/m", provider="gpu2")
    assert prove_route(a_route(LOCAL, twin)).never_wins == ()


def test_many_equal_candidates_are_taken_together_and_nobody_is_lost() -> None:
    twins = [dataclasses.replace(CODEX, name=f"codex{i}/m", provider=f"codex{i}") for i in range(5)]
    proof = prove_route(a_route(*twins, purpose="strong"))
    assert proof.reduced
    assert proof.counterexample is None
    assert proof.never_wins == ()


def admit(route: Route, name: str, state: PinState = PinState.NEW) -> Decision:
    return Decision(Verdict.ADMITTED, route.by_name[name], state)


def pays_when_subscriptions_are_unknown(
    route: Route, request: Request, pin: StoredPin | None, groups: Groups, now: int
) -> Decision:
    decision = decide(route, request, pin, groups, now)
    paid = next((e for e in decision.evaluations if e.verdict is CandidateVerdict.NOT_AUTHORIZED), None)
    unknown = any(e.verdict is CandidateVerdict.UNKNOWN for e in decision.evaluations)
    if pin is None and paid is not None and unknown and paid.blocker is Blocker.SUBSCRIPTION_NOT_BLOCKED:
        return admit(route, paid.candidate.name)
    return decision


def takes_stale_for_fresh(route: Route, request: Request, pin: StoredPin | None, groups: Groups, now: int) -> Decision:
    return decide(route, request, pin, groups, now - 10**9 // 2 - 1)


def moves_a_pinned_worker(route: Route, request: Request, pin: StoredPin | None, groups: Groups, now: int) -> Decision:
    decision = decide(route, request, pin, groups, now)
    if pin is not None and decision.verdict is Verdict.REFUSED:
        return decide(route, request, None, groups, now)
    return decision


def lets_a_compaction_bind(route: Route, request: Request, pin: StoredPin | None, groups: Groups, now: int) -> Decision:
    binds = request.compaction and pin is None
    return decide(route, request._replace(compaction=False, request_bytes=1) if binds else request, pin, groups, now)


def forgets_the_bytes(route: Route, request: Request, pin: StoredPin | None, groups: Groups, now: int) -> Decision:
    return decide(dataclasses.replace(route, max_context_bytes=1 << 40), request, pin, groups, now)


@pytest.mark.parametrize(
    ("mutant", "route", "broken"),
    [
        (pays_when_subscriptions_are_unknown, ROUTINE, 0),
        (takes_stale_for_fresh, ROUTINE, 1),
        (moves_a_pinned_worker, ROUTINE, 2),
        (lets_a_compaction_bind, ROUTINE, 3),
        (forgets_the_bytes, ROUTINE, 4),
        (decide, a_route(LOCAL, CLAUDE, purpose="review"), 5),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_promise_can_break(mutant: Decide, route: Route, broken: int) -> None:
    found = prove_route(route, mutant).counterexample
    assert found is not None
    assert found.promise is PROMISES[broken]
    assert "->" in found.describe()
