"""`prove` over settings that leave a state out: no reserve, no bound on waiting, no permission to pay."""

import dataclasses

from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.model import Request, StoredPin, Tier
from tidegate_server.core.policy import Candidate, Route, Saturation
from tidegate_server.core.prove import PROMISES, prove_route
from tidegate_server.core.verdicts import Groups

LOCAL = Candidate("gpu/m", "gpu", "m", Tier.LOCAL, "none", "b1", saturation=Saturation(max_kv_usage=0.8))
CODEX = Candidate("codex/m", "codex", "m", Tier.SUBSCRIPTION, "login", "b2")
PAID = Candidate("paid", "router", "m", Tier.PAID, "env:KEY", "b3")
UNPAID = Route("managed/r", "routine", (LOCAL, CODEX, PAID), "fp", 1000, 5000, min_remaining_percent=0.0)


def test_the_promises_hold_without_a_reserve_and_without_a_bound_on_waiting() -> None:
    proof = prove_route(dataclasses.replace(UNPAID, allow_paid=True))
    assert proof.counterexample is None
    assert proof.never_wins == ()


def test_paying_without_permission_is_found() -> None:
    def pays(route: Route, request: Request, pin: StoredPin | None, groups: Groups, now: int) -> Decision:
        return decide(dataclasses.replace(route, allow_paid=True), request, pin, groups, now)

    assert prove_route(UNPAID).counterexample is None
    found = prove_route(UNPAID, pays).counterexample
    assert found is not None
    assert found.promise == PROMISES[0]
