"""The decision: may this work start now, and on which provider?

Pure: no I/O, no clock, no randomness. It reads like §4 of the contract, step by step, and keeps all that it read. The
steps that are not policy stand around it: the model's name and the request's form before it (steps 1 and 2), the flow
guard's word comes in as an argument (step 5), the pin is stored after it.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from tidegate_server.core import refusals
from tidegate_server.core.freshness import is_fresh
from tidegate_server.core.model import (
    Blocker,
    CandidateVerdict,
    CorruptPin,
    Instant,
    Pin,
    PinState,
    RefusalReason,
    Request,
    StoredPin,
    Tier,
    Verdict,
)
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.core.refusals import FRESH_WORKER, PIN_MISSING, Refusal
from tidegate_server.core.verdicts import Block, Evaluation, Groups, evaluate, judge

COMPACTION_FACTOR = 4
COMPACTION_CAP = 4 * 1024 * 1024
"""A compaction may have four times the route's bytes, capped at 4 MiB, and never less than the route's own limit."""

ELIGIBLE, BUSY = CandidateVerdict.ELIGIBLE, CandidateVerdict.BUSY
R = RefusalReason


class Evidence(NamedTuple):
    """Why money may be spent: one fact, and what it blocks (NONE: the paid account's own fresh capacity)."""

    candidate: str
    block: Block


class Decision(NamedTuple):
    """The answer, and everything it rests on.

    `wait_for`: the providers for whose facts the contract asks a cold wait before this answer is final. `effort` is
    what goes upstream; `effort_mapped`, whether the route's map chose it. `now` is the instant it was made at, and
    `groups` are the facts as they were then.
    """

    verdict: Verdict
    candidate: Candidate | None = None
    pin_state: PinState = PinState.NONE
    refusal: Refusal | None = None
    evaluations: tuple[Evaluation, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    wait_for: tuple[str, ...] = ()
    effort: str = ""
    effort_mapped: bool = False
    now: Instant = 0
    groups: Groups = MappingProxyType({})


def decide(
    route: Route,
    request: Request,
    pin: StoredPin | None,
    groups: Groups,
    now: Instant,
    flow: Refusal | None = None,
) -> Decision:
    """Steps 3 to 9 of §4.1. `flow` is what the flow guard said in step 5: a refusal, or None."""
    refusal = screen(route, request, pin is not None) or flow
    if refusal is not None:
        return _refused(route, request, refusal, groups, now, pin)
    if pin is not None:
        return _decide_pinned(route, request, pin, groups, now)
    if request.require_pin:
        return _refused(route, request, PIN_MISSING, groups, now)
    if request.provider_state:
        message = "The request carries a provider's opaque state, and the worker is bound to no provider."
        suggestion = "start a fresh worker with a plaintext handoff"
        return _refused(route, request, Refusal(R.OPAQUE_STATE_REQUIRES_PIN, message, suggestion), groups, now)
    return _decide_new(route, request, groups, now)


def screen(route: Route, request: Request, has_pin: bool) -> Refusal | None:
    """Steps 3 and 4: what can be refused without a fact. Only a compaction asks whether there is a pin."""
    limit = route.max_context_bytes
    if request.compaction:
        if not has_pin:
            message = "A compaction continues a bound worker, and this one has no pin."
            return Refusal(R.COMPACTION_REQUIRES_PIN, message, "the worker's own id, or a request without compaction")
        limit = max(limit, min(COMPACTION_FACTOR * limit, COMPACTION_CAP))
    if request.request_bytes > limit:
        return refusals.too_long(request.request_bytes, limit, request.compaction)
    for modality in request.input_modalities:
        if modality != "text":
            return Refusal(
                R.MODALITY_UNSUPPORTED, f'Routes take text only, and the request has "{modality}".', "text input only"
            )
    return None


def paid_blocker(route: Route, earlier: Sequence[Evaluation]) -> Blocker:
    """§4.4, the rule that money depends on: why a paid candidate is not authorized; NONE when it is.

    By default only if `allowPaid` and every subscription candidate of the route has a confirmed blocker; with
    `preferPaidFlash`, `allowPaid` is enough. `earlier` are the evaluations of the candidates before it in the order of
    §4.2, under the default policy therefore of every subscription; a missing one is not confirmed.
    """
    if not route.allow_paid:
        return Blocker.PAID_NOT_ALLOWED
    if route.prefer_paid_flash:
        return Blocker.NONE
    confirmed = {e.candidate.name for e in earlier if e.confirming}
    if not route.subscriptions or not confirmed.issuperset([s.name for s in route.subscriptions]):
        return Blocker.SUBSCRIPTION_NOT_BLOCKED
    return Blocker.NONE


def evaluate_next(route: Route, effort: str, groups: Groups, now: Instant, earlier: Sequence[Evaluation]) -> Evaluation:
    """The verdict for a new worker of the candidate that comes after `earlier`."""
    candidate = route.candidates[len(earlier)]
    facts_say = judge(candidate, route, groups, now)
    paid = paid_blocker(route, earlier) if candidate.tier is Tier.PAID else Blocker.NONE
    return evaluate(facts_say, effort, paid)


def evaluate_all(route: Route, effort: str, groups: Groups, now: Instant) -> tuple[Evaluation, ...]:
    """Every candidate's verdict for a new worker, in order."""
    evaluations: list[Evaluation] = []
    for _ in route.candidates:
        evaluations.append(evaluate_next(route, effort, groups, now, evaluations))
    return tuple(evaluations)


def _decide_new(route: Route, request: Request, groups: Groups, now: Instant) -> Decision:
    """Steps 7 to 9: the first eligible candidate is bound."""
    effort = request.reasoning_effort
    evaluations: list[Evaluation] = []
    for _ in route.candidates:
        evaluation = evaluate_next(route, effort, groups, now, evaluations)
        evaluations.append(evaluation)
        if evaluation.verdict is ELIGIBLE:
            return _bound(route, request, tuple(evaluations), groups, now)
    everyone = tuple(evaluations)
    return Decision(
        Verdict.REFUSED,
        refusal=refusals.no_candidate(route, effort, everyone, now),
        evaluations=everyone,
        wait_for=_doubtful_providers(everyone),
        now=now,
        groups=groups,
    )


def _bound(
    route: Route, request: Request, evaluations: tuple[Evaluation, ...], groups: Groups, now: Instant
) -> Decision:
    """Step 7. Before money is bound, an earlier candidate that is unknown or stale gets its chance: the cold wait."""
    *earlier, chosen = evaluations
    candidate = chosen.candidate
    is_paid = candidate.tier is Tier.PAID
    return Decision(
        Verdict.ADMITTED,
        candidate,
        PinState.NEW,
        evaluations=evaluate_all(route, request.reasoning_effort, groups, now) if request.explain else evaluations,
        evidence=_evidence(route, earlier, chosen, now) if is_paid else (),
        wait_for=_doubtful_providers(earlier) if is_paid else (),
        effort=candidate.mapped_effort or request.reasoning_effort,
        effort_mapped=bool(candidate.mapped_effort),
        now=now,
        groups=groups,
    )


def _decide_pinned(route: Route, request: Request, pin: StoredPin, groups: Groups, now: Instant) -> Decision:
    """§4.5, in its order. Never another provider, never a new pin."""
    refusal = check_pin(route, pin) or _check_pinned_request(route, request, pin)
    if refusal is not None:
        return _refused(route, request, refusal, groups, now, pin)
    assert isinstance(pin, Pin)
    candidate = route.by_name[pin.candidate]
    evaluations: list[Evaluation] = []
    if candidate.tier is Tier.PAID and not route.prefer_paid_flash:
        prerequisite = _check_prerequisite(route, groups, now, evaluations)
        if prerequisite is not None:
            return prerequisite
    own = judge(candidate, route, groups, now, pinned=True)
    evaluations.append(own)
    if own.verdict is not ELIGIBLE:
        return Decision(
            Verdict.REFUSED,
            pin_state=PinState.EXISTING,
            refusal=refusals.pin_unavailable(own, now),
            evaluations=tuple(evaluations),
            wait_for=_doubtful_providers((own,)),
            now=now,
            groups=groups,
        )
    return Decision(
        Verdict.ADMITTED,
        candidate,
        PinState.EXISTING,
        None,
        tuple(evaluations),
        _evidence(route, evaluations[:-1], own, now) if candidate.tier is Tier.PAID else (),
        (),
        candidate.mapped_effort or request.reasoning_effort,
        bool(candidate.mapped_effort),
        now=now,
        groups=groups,
    )


def check_pin(route: Route, pin: StoredPin) -> Refusal | None:
    """The first four checks of §4.5: those that no request and no fact can change."""
    if isinstance(pin, CorruptPin):
        return Refusal(R.PIN_CORRUPT, "The stored pin of this worker is damaged.", FRESH_WORKER)
    if pin.retired:
        return Refusal(R.PIN_RETIRED, "An operator retired the pin of this worker.", FRESH_WORKER)
    if pin.policy_fingerprint != route.fingerprint:
        message = f"The policy of {route.name} is not the one that this worker was bound under."
        return Refusal(R.PIN_POLICY_CHANGED, message, f"{FRESH_WORKER}, or restore the route's settings")
    candidate = route.by_name.get(pin.candidate)
    if candidate is None or candidate.binding_fingerprint != pin.binding_fingerprint:
        message = f"{pin.candidate} is not configured as it was when this worker was bound to it."
        return Refusal(
            R.PIN_BINDING_CHANGED, message, f"{FRESH_WORKER}, or restore the provider", candidate=pin.candidate
        )
    return None


def _check_pinned_request(route: Route, request: Request, pin: StoredPin) -> Refusal | None:
    """What the request itself asks of the binding: its provider's opaque state, a supported effort."""
    assert isinstance(pin, Pin)
    if request.provider_state and request.provider_state not in (pin.provider, "unknown"):
        message = (
            f"The request carries opaque state of {request.provider_state}; the worker is bound to {pin.provider}."
        )
        return Refusal(
            R.OPAQUE_STATE_MISMATCH, message, f"the state of {pin.provider}, or none", candidate=pin.candidate
        )
    candidate = route.by_name[pin.candidate]
    wanted = candidate.mapped_effort or request.reasoning_effort
    if wanted and wanted not in candidate.reasoning_efforts:
        return Refusal(
            R.EFFORT_UNSUPPORTED,
            f'{candidate.name} does not support the reasoning effort "{wanted}".',
            f"reasoning effort {' or '.join(candidate.reasoning_efforts)}" if candidate.reasoning_efforts else "none",
            Blocker.EFFORT_UNSUPPORTED,
            candidate.name,
        )
    return None


def _check_prerequisite(route: Route, groups: Groups, now: Instant, evaluations: list[Evaluation]) -> Decision | None:
    """A paid pin lives on its prerequisite: every subscription still has a confirmed blocker (effort aside)."""
    evaluations.extend(judge(subscription, route, groups, now) for subscription in route.subscriptions)
    everyone = tuple(evaluations)
    lifted = next((e for e in everyone if e.verdict in (ELIGIBLE, BUSY)), None)
    if lifted is not None:
        name = lifted.candidate.name
        message = f"The worker is bound to a paid model, and the subscription {name} is not blocked any more."
        refusal = Refusal(R.PIN_PAID_PREREQUISITE_LIFTED, message, f"{FRESH_WORKER} on {name}", candidate=name)
        return Decision(
            Verdict.REFUSED, pin_state=PinState.EXISTING, refusal=refusal, evaluations=everyone, now=now, groups=groups
        )
    unconfirmed = next((e for e in everyone if not e.confirmed), None)
    if unconfirmed is None:
        return None
    name = unconfirmed.candidate.name
    message = f"The worker is bound to a paid model, and the blocker of the subscription {name} is not confirmed"
    refusal = refusals.pin_unavailable(unconfirmed, now)._replace(
        message=f"{message}: {refusals.describe(unconfirmed, now)}."
    )
    return Decision(
        Verdict.REFUSED,
        pin_state=PinState.EXISTING,
        refusal=refusal,
        evaluations=everyone,
        wait_for=_doubtful_providers(everyone),
        now=now,
        groups=groups,
    )


def _evidence(
    route: Route, subscriptions: Sequence[Evaluation], paid: Evaluation, now: Instant
) -> tuple[Evidence, ...]:
    """§4.4: each confirmed blocker; where the route asks for none, the paid account's own fresh capacity."""
    if route.prefer_paid_flash:
        fresh = (fact for fact in paid.facts if is_fresh(fact, now))
        return tuple(Evidence(paid.candidate.name, Block(Blocker.NONE, fact)) for fact in fresh)
    return tuple([Evidence(e.candidate.name, block) for e in subscriptions for block in e.confirming])


def _doubtful_providers(evaluations: Sequence[Evaluation]) -> tuple[str, ...]:
    """Whose collectors to ask: the providers of the candidates that are unknown or stale, each once, in order."""
    doubtful = [e.candidate.provider for e in evaluations if e.is_doubtful]
    return tuple(dict.fromkeys(doubtful)) if doubtful else ()


def _refused(
    route: Route,
    request: Request,
    refusal: Refusal,
    groups: Groups,
    now: Instant,
    pin: StoredPin | None = None,
) -> Decision:
    """A refusal that no candidate's facts led to; how they stand is told all the same."""
    return Decision(
        Verdict.REFUSED,
        pin_state=PinState.NONE if pin is None else PinState.EXISTING,
        refusal=refusal,
        evaluations=evaluate_all(route, request.reasoning_effort, groups, now),
        now=now,
        groups=groups,
    )
