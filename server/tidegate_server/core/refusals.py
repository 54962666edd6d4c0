"""Refusals that a program can act on: the table of §4.6 of the contract, and the words."""

from typing import NamedTuple

from tidegate_server.core.model import SECOND, Blocker, CandidateVerdict, Fact, Instant, Nanos, RefusalReason
from tidegate_server.core.policy import Route
from tidegate_server.core.verdicts import Evaluation

R = RefusalReason


class Answer(NamedTuple):
    """How a reason shows on HTTP. Common SDKs retry 408, 409, 429 and 5xx: only what is retryable has one of these."""

    http_status: int
    retryable: bool


_BAD_REQUEST, _FORBIDDEN, _GONE = Answer(400, False), Answer(403, False), Answer(410, False)
_LATER, _DOWN = Answer(429, True), Answer(503, True)

ANSWERS: dict[RefusalReason, Answer] = {
    R.CONTEXT_LENGTH_EXCEEDED: _BAD_REQUEST,
    R.COMPACTION_REQUIRES_PIN: _BAD_REQUEST,
    R.OPAQUE_STATE_REQUIRES_PIN: _BAD_REQUEST,
    R.OPAQUE_STATE_MISMATCH: _BAD_REQUEST,
    R.MODALITY_UNSUPPORTED: _BAD_REQUEST,
    R.EFFORT_UNSUPPORTED: _BAD_REQUEST,
    R.FLOW_REQUIRED: _BAD_REQUEST,
    R.PIN_PAID_PREREQUISITE_LIFTED: _FORBIDDEN,
    R.FLOW_UNKNOWN: _FORBIDDEN,
    R.FLOW_TIMEOUT: _FORBIDDEN,
    R.FLOW_HOP_CLOSED: _FORBIDDEN,
    R.FLOW_DEPTH_EXCEEDED: _FORBIDDEN,
    R.FLOW_CYCLE_DETECTED: _FORBIDDEN,
    R.FLOW_FAN_OUT_EXCEEDED: _FORBIDDEN,
    R.FLOW_TOKENS_EXHAUSTED: _FORBIDDEN,
    R.PIN_MISSING: _GONE,
    R.PIN_CORRUPT: _GONE,
    R.PIN_RETIRED: _GONE,
    R.PIN_POLICY_CHANGED: _GONE,
    R.PIN_BINDING_CHANGED: _GONE,
    R.CAPACITY_UNKNOWN: _LATER,
    R.NO_ELIGIBLE_CANDIDATE: _LATER,
    R.PIN_PROVIDER_UNAVAILABLE: _LATER,
    R.FLOW_GUARD_UNAVAILABLE: _DOWN,
}

FRESH_WORKER = "start a fresh worker"


class Refusal(NamedTuple):
    """A policy answer "no". `until` is the instant at which something known will change; None: nothing known will."""

    reason: RefusalReason
    message: str
    suggestion: str = ""
    blocker: Blocker = Blocker.NONE
    candidate: str = ""
    until: Instant | None = None

    @property
    def code(self) -> str:
        """The reason in lower snake case; `context_length_exceeded` is byte for byte what SDKs look for."""
        return self.reason.name.lower()


PIN_MISSING = Refusal(R.PIN_MISSING, "No pin of this worker is stored.", FRESH_WORKER)

FLOW_REQUIRED = Refusal(
    R.FLOW_REQUIRED, "The route takes only requests that belong to a flow.", "a hop, or a flow that is open"
)


def grouped(number: int) -> str:
    """12 288: digits in groups of three."""
    return f"{number:,}".replace(",", " ")


def for_people(length: Nanos) -> str:
    """A length of time, rounded up: 41 s, 12 min, 3 h, 5 d."""
    seconds = -(-length // SECOND)
    for size, limit, unit in ((1, 120, "s"), (60, 7200, "min"), (3600, 172_800, "h")):
        if seconds <= limit:
            return f"{-(-seconds // size)} {unit}"
    return f"{-(-seconds // 86_400)} d"


def too_long(request_bytes: int, limit: int, compaction: bool) -> Refusal:
    """The request is over the route's byte budget, or the compaction over its recovery allowance."""
    budget = "recovery allowance" if compaction else "budget"
    return Refusal(
        R.CONTEXT_LENGTH_EXCEEDED,
        f"The request has {grouped(request_bytes)} bytes; the route's {budget} is {grouped(limit)}.",
        f"{grouped(request_bytes - limit)} bytes fewer",
    )


def no_candidate(route: Route, effort: str, evaluations: tuple[Evaluation, ...], now: Instant) -> Refusal:
    """§4.1 step 9: all unsuitable; something unknown or stale; else nobody is eligible."""
    if all(e.verdict is CandidateVerdict.UNSUITABLE for e in evaluations):
        return _effort_unsupported(effort, evaluations)
    doubtful = next((e for e in evaluations if e.is_doubtful), None)
    until = min((e.until for e in evaluations if e.until is not None), default=None)
    if doubtful is not None:
        return Refusal(
            R.CAPACITY_UNKNOWN,
            f"Capacity is not known: {describe(doubtful, now)}.",
            missing_fact(doubtful),
            doubtful.blocker,
            doubtful.candidate.name,
            until,
        )
    out = standing_out(evaluations)
    return Refusal(
        R.NO_ELIGIBLE_CANDIDATE,
        f"No candidate of {route.name} is eligible: {describe(out, now)}.",
        what_would_help(out, now),
        out.blocker,
        out.candidate.name,
        until,
    )


def _effort_unsupported(effort: str, evaluations: tuple[Evaluation, ...]) -> Refusal:
    known = list(dict.fromkeys(name for e in evaluations for name in e.candidate.reasoning_efforts))
    return Refusal(
        R.EFFORT_UNSUPPORTED,
        f'No candidate supports the reasoning effort "{effort}".',
        f"reasoning effort {' or '.join(known)}" if known else "no reasoning effort",
        Blocker.EFFORT_UNSUPPORTED,
        evaluations[0].candidate.name if len(evaluations) == 1 else "",
    )


def standing_out(evaluations: tuple[Evaluation, ...]) -> Evaluation:
    """The candidate that a refusal names: the first to change; else the first that facts keep out; else the first."""
    timed = [e for e in evaluations if e.until is not None]
    if timed:
        return min(timed, key=lambda e: e.until or 0)
    kept_out = (CandidateVerdict.BLOCKED, CandidateVerdict.BUSY)
    return next((e for e in evaluations if e.verdict in kept_out), evaluations[0])


def pin_unavailable(evaluation: Evaluation, now: Instant) -> Refusal:
    """The worker stays where it is; its provider cannot take it now."""
    return Refusal(
        R.PIN_PROVIDER_UNAVAILABLE,
        f"The worker is bound to {evaluation.candidate.name}, which is not eligible now: {describe(evaluation, now)}.",
        missing_fact(evaluation) if evaluation.is_doubtful else what_would_help(evaluation, now),
        evaluation.blocker,
        evaluation.candidate.name,
        evaluation.until,
    )


def missing_fact(evaluation: Evaluation) -> str:
    """The suggestion for a candidate in doubt: a fresh quota fact for codex."""
    doubt = evaluation.doubt
    kind = doubt.kind if doubt is not None else "capacity"
    window = f" (window {doubt.part})" if doubt is not None and kind == "quota" and doubt.part else ""
    return f"a fresh {kind} fact for {evaluation.candidate.provider}{window}"


_HELP = {
    Blocker.AUTH_FAILED: "a working login for {}",
    Blocker.ACCOUNT_DISABLED: "an enabled account for {}",
    Blocker.PROVIDER_DOWN: "{} up again",
    Blocker.QUOTA_EXHAUSTED: "quota for {}",
    Blocker.QUOTA_BELOW_RESERVE: "quota above the reserve for {}",
    Blocker.BALANCE_EMPTY: "a positive balance for {}",
    Blocker.SATURATED: "less load on {}",
    Blocker.PAID_NOT_ALLOWED: "allowPaid for {}",
    Blocker.SUBSCRIPTION_NOT_BLOCKED: "a confirmed blocker on every subscription",
    Blocker.EFFORT_UNSUPPORTED: "a reasoning effort that {} supports",
}


def what_would_help(evaluation: Evaluation, now: Instant) -> str:
    """The suggestion for a candidate that something known keeps out."""
    if evaluation.until is not None:
        return f"in {for_people(evaluation.until - now)}"
    return _HELP.get(evaluation.blocker, "{} healthy again").format(evaluation.candidate.provider)


_STATES = {
    CandidateVerdict.ELIGIBLE: "is eligible",
    CandidateVerdict.UNSUITABLE: "does not support this reasoning effort",
    CandidateVerdict.UNKNOWN: "has no known {}",
    CandidateVerdict.STALE: "has only a stale {}",
}


def describe(evaluation: Evaluation, now: Instant) -> str:
    """One clause about a candidate: what decided, with the number and the age it rests on."""
    name = evaluation.candidate.name
    if evaluation.verdict in _STATES:
        kind, part = evaluation.doubt[1:] if evaluation.doubt is not None else ("", "")
        return f"{name} {_STATES[evaluation.verdict].format(f'{kind} fact' + (f' ({part})' if part else ''))}"
    if evaluation.verdict is CandidateVerdict.NOT_AUTHORIZED:
        allowed = evaluation.blocker is not Blocker.PAID_NOT_ALLOWED
        why = "a subscription has no confirmed blocker" if allowed else "the route does not allow paid models"
        return f"{name} is paid, and {why}"
    fact = evaluation.deciding
    assert fact is not None
    part = f" ({fact.key.part})" if fact.key.kind in ("quota", "balance") else ""
    ends = f", until in {for_people(evaluation.until - now)}" if evaluation.until is not None else ""
    return f"{name} is {evaluation.blocker.name}{part} by a fact {age_of(fact, now)} old{ends}"


def age_of(fact: Fact, now: Instant) -> str:
    """A fact's age for people."""
    return for_people(max(0, now - fact.captured))
