"""Admissions, pins and the catalog between the wire and the core. Observations and facts: `fact_mapping`."""

from collections.abc import Sequence

from tidegate.v1 import admission_pb2 as admission_wire
from tidegate.v1 import types_pb2 as wire

from tidegate_server.core.decide import Evidence
from tidegate_server.core.headers import gateway_headers
from tidegate_server.core.model import CorruptPin, Instant, Pin, StoredPin, Verdict, WallTime
from tidegate_server.core.policy import Candidate, CatalogEntry
from tidegate_server.core.refusals import ANSWERS, Refusal, describe
from tidegate_server.core.verdicts import Evaluation
from tidegate_server.rpc.fact_mapping import duration, fact_message, timestamp
from tidegate_server.rpc.grant_mapping import grant_message
from tidegate_server.usecases.admit import Admission, AdmitAsk, FlowContext
from tidegate_server.usecases.pin import LookedUp

TEXT = ("text",)


def ask_of(request: admission_wire.AdmitRequest, flow: FlowContext | None) -> AdmitAsk:
    """The admission that was asked for."""
    return AdmitAsk(
        request.model,
        request.worker_id,
        request.request_bytes if request.HasField("request_bytes") else None,
        request.tenant,
        request.reasoning_effort,
        request.compaction,
        request.provider_state,
        tuple(request.input_modalities),
        request.require_pin,
        request.explain,
        request.dry_run,
        request.request_id,
        flow,
    )


def admit_response(admission: Admission) -> admission_wire.AdmitResponse:
    """The answer to an Admit."""
    decision, ask, route = admission.decision, admission.ask, admission.route
    response = admission_wire.AdmitResponse(
        verdict=decision.verdict.value,  # type: ignore[arg-type] # the enums share their numbers
        pin_state=decision.pin_state.value,  # type: ignore[arg-type]
        decision_id=admission.decision_id,
        policy_fingerprint="" if route is None else route.fingerprint,
    )
    if decision.refusal is not None:
        response.refusal.CopyFrom(refusal_message(decision.refusal, decision.now))
        response.suggestion = decision.refusal.suggestion
    elif decision.candidate is not None:
        response.binding.CopyFrom(_binding(decision.candidate, ask.worker_id))
        response.headers.update(gateway_headers(decision.candidate, ask.worker_id, route))
        response.reasoning_effort = decision.effort
        response.reasoning_effort_mapped = decision.effort_mapped
    if admission.hop is not None:
        response.hop.CopyFrom(grant_message(admission.hop))
    if decision.verdict is Verdict.REFUSED or ask.explain:
        response.evaluations.extend(evaluation_messages(decision.evaluations, decision.now, admission.wall))
    response.evidence.extend(_evidence_message(e, decision.now, admission.wall) for e in decision.evidence)
    return response


def refusal_message(refusal: Refusal, now: Instant) -> wire.Refusal:
    """A refusal with its row of the contract's table."""
    answer = ANSWERS[refusal.reason]
    return wire.Refusal(
        reason=refusal.reason.value,  # type: ignore[arg-type]
        message=refusal.message,
        code=refusal.code,
        http_status=answer.http_status,
        retryable=answer.retryable,
        retry_delay=None if refusal.until is None else duration(max(0, refusal.until - now)),
        blocker=refusal.blocker.value,  # type: ignore[arg-type]
        candidate=refusal.candidate,
    )


def _binding(candidate: Candidate, worker_id: str) -> wire.Binding:
    return wire.Binding(
        candidate=candidate.name,
        provider=candidate.provider,
        model=candidate.model,
        tier=candidate.tier.value,  # type: ignore[arg-type]
        credential_source=candidate.credential_source,
        session_affinity_key=worker_id if candidate.session_affinity else "",
    )


def evaluation_messages(
    evaluations: Sequence[Evaluation], now: Instant, wall: WallTime, passive: frozenset[str] = frozenset()
) -> list[wire.Evaluation]:
    """Each candidate's verdict with the facts that it rests on. `passive`: providers that nobody can be asked about."""
    return [
        wire.Evaluation(
            candidate=e.candidate.name,
            tier=e.candidate.tier.value,  # type: ignore[arg-type]
            verdict=e.verdict.value,  # type: ignore[arg-type]
            blocker=e.blocker.value,  # type: ignore[arg-type]
            confirmed=e.confirmed,
            detail=describe(e, now) + (PASSIVE_ONLY if e.candidate.provider in passive else ""),
            until_time=None if e.until is None else timestamp(wall + (e.until - now)),
            facts=[fact_message(fact, now, wall) for fact in e.facts],
        )
        for e in evaluations
    ]


PASSIVE_ONLY = "; warning: only passive collectors cover the provider, without traffic its facts run out"


def _evidence_message(evidence: Evidence, now: Instant, wall: WallTime) -> wire.Evidence:
    blocker, fact = evidence.block
    return wire.Evidence(
        candidate=evidence.candidate,
        blocker=blocker.value,  # type: ignore[arg-type]
        fact=fact_message(fact, now, wall),
    )


def looked_up_response(found: LookedUp, now: Instant) -> admission_wire.PinResponse:
    """The answer to a LOOKUP."""
    response = admission_wire.PinResponse(
        verdict=found.verdict.value,  # type: ignore[arg-type]
        pin_state=found.pin_state.value,  # type: ignore[arg-type]
        pin=None if found.pin is None else pin_record(found.pin),
    )
    if found.refusal is not None:
        response.refusal.CopyFrom(refusal_message(found.refusal, now))
        response.suggestion = found.refusal.suggestion
    return response


def established_response(admission: Admission) -> admission_wire.PinResponse:
    """The answer to an ESTABLISH."""
    decision = admission.decision
    response = admission_wire.PinResponse(
        verdict=decision.verdict.value,  # type: ignore[arg-type]
        pin_state=decision.pin_state.value,  # type: ignore[arg-type]
        pin=None if admission.pin is None else pin_record(admission.pin),
    )
    if decision.refusal is not None:
        response.refusal.CopyFrom(refusal_message(decision.refusal, decision.now))
        response.suggestion = decision.refusal.suggestion
        response.evaluations.extend(evaluation_messages(decision.evaluations, decision.now, admission.wall))
    response.evidence.extend(_evidence_message(e, decision.now, admission.wall) for e in decision.evidence)
    return response


def pin_record(pin: StoredPin) -> wire.PinRecord:
    """A stored pin; of a corrupt one nothing but its id is known."""
    if isinstance(pin, CorruptPin):
        return wire.PinRecord(pin_id=pin.pin_id.hex())
    return _pin_record(pin)


def _pin_record(pin: Pin) -> wire.PinRecord:
    return wire.PinRecord(
        model=pin.route,
        candidate=pin.candidate,
        provider=pin.provider,
        provider_model=pin.model,
        tier=pin.tier.value,  # type: ignore[arg-type]
        credential_source=pin.credential_source,
        policy_fingerprint=pin.policy_fingerprint,
        binding_fingerprint=pin.binding_fingerprint,
        create_time=timestamp(pin.create_time),
        pin_id=pin.pin_id.hex(),
        retired=pin.retired,
    )


def catalog_model(entry: CatalogEntry) -> admission_wire.CatalogModel:
    """A row of the catalog."""
    return admission_wire.CatalogModel(
        id=entry.id,
        visibility=wire.VISIBILITY_HIDE if entry.managed else wire.VISIBILITY_SHOW,
        managed=entry.managed,
        context_window=entry.context_window,
        auto_compact_token_limit=entry.auto_compact_token_limit,
        reasoning_efforts=entry.reasoning_efforts,
        input_modalities=TEXT,
        collaboration_contract=entry.collaboration_contract,
        metadata=entry.metadata,
    )
