"""What is shown, as JSON data: built of the messages that the RPCs answer with, and of the same words."""

import json
from collections.abc import Sequence

from tidegate.v1 import admission_pb2

from tidegate_server.admin.answers import Json, message_data
from tidegate_server.core.admission_detail import admission_inputs
from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.decision_record import ADMISSION, DecisionRecord, recompute
from tidegate_server.core.explain import BYPASSED_RULE, REFUSED_RULES, rule_of
from tidegate_server.core.flow.model import Flow
from tidegate_server.core.model import SECOND, Fact, Instant, RefusalReason, WallTime
from tidegate_server.core.policy import CatalogEntry, Policy
from tidegate_server.metrics import Sample
from tidegate_server.rpc import flow_mapping, mapping, selection_mapping
from tidegate_server.rpc.fact_mapping import fact_message, timestamp
from tidegate_server.usecases.capacity import CapacityNow
from tidegate_server.usecases.outlook import KnownNow, OutlookNow
from tidegate_server.usecases.status import StatusNow

SHORTENED = 2_000
"""Characters of a text in a list; the decision itself has the whole of it."""

FACTS_SHOWN = 50
"""Facts of one provider, or of one candidate, that are shown at once: a page that is looked at slows no admission."""


def models(entries: Sequence[CatalogEntry], policy: Policy) -> Json:
    """`entries`, which are fixed models, as an OpenAI-compatible client expects a list of models."""
    rows = [
        {"id": entry.id, "object": "model", "created": 0, "owned_by": policy.models[entry.id].provider}
        for entry in entries
    ]
    return {"object": "list", "data": rows}


def model_catalog(entries: Sequence[CatalogEntry], features: Sequence[str]) -> Json:
    """Everything that may be asked for: fixed models with "visibility": "show", routes with "hide"."""
    rows = []
    for entry in entries:
        row = message_data(mapping.catalog_model(entry))
        sizes = {"context_window": entry.context_window}  # numbers: the protocol's JSON writes 64 bits as text
        if entry.auto_compact_token_limit is not None:
            sizes["auto_compact_token_limit"] = entry.auto_compact_token_limit
        rows.append({**row, **sizes, "visibility": "hide" if entry.managed else "show"})
    return {"models": rows, "features": list(features)}


def capacity(found: CapacityNow) -> Json:
    """As the RPC Capacity answers, with the moment that the ages are told for."""
    response = admission_pb2.CapacityResponse(
        facts=[fact_message(fact, found.now, found.wall) for fact in found.facts],
        evaluations=mapping.evaluation_messages(found.evaluations, found.now, found.wall, found.passive),
    )
    return {"as_of_time": _time(found.wall), **message_data(response), "left_out": 0}


def known(found: KnownNow) -> Json:
    """The facts of all providers, at most FACTS_SHOWN of each; `left_out` says how many are not told."""
    told: dict[str, list[Fact]] = {}
    left_out = 0
    for (provider, _), group in sorted(found.groups.items(), key=lambda item: item[0]):
        so_far = told.setdefault(provider, [])
        more = group.all[: FACTS_SHOWN - len(so_far)]
        so_far.extend(more)
        left_out += len(group.all) - len(more)
    facts = [fact_message(fact, found.now, found.wall) for of_provider in told.values() for fact in of_provider]
    answer = message_data(admission_pb2.CapacityResponse(facts=facts))
    return {"as_of_time": _time(found.wall), **answer, "left_out": left_out}


def outlook(found: OutlookNow, policy: Policy) -> Json:
    """What a new worker would get on each route, and which providers there are."""
    rows = []
    for route, decision, rule in found.routes:
        rows.append(
            {
                "route": route.name,
                "purpose": route.purpose,
                "min_remaining_percent": route.min_remaining_percent,
                "allow_paid": route.allow_paid,
                "prefer_paid_flash": route.prefer_paid_flash,
                "require_flow": route.require_flow,
                "providers": list(dict.fromkeys(candidate.provider for candidate in route.candidates)),
                **explanation(decision, rule, found.now, found.wall),
            }
        )
    providers = [
        {"provider": name, "kind": known.tier.name.lower(), "models": sorted(set(known.models.values()))}
        for name, known in policy.providers.items()
    ]
    return {"as_of_time": _time(found.wall), "routes": rows, "providers": providers}


def explanation(decision: Decision, rule: str, now: Instant, wall: WallTime) -> Json:
    """The answer, the rule that decided, what would admit, and every candidate that was looked at."""
    refusal = decision.refusal
    shown = [e._replace(facts=e.facts[:FACTS_SHOWN]) for e in decision.evaluations]
    evaluations = mapping.evaluation_messages(shown, now, wall)
    return {
        "verdict": decision.verdict.name,
        "candidate": "" if decision.candidate is None else decision.candidate.name,
        "pin_state": decision.pin_state.name,
        "rule": rule,
        "refusal": None if refusal is None else message_data(mapping.refusal_message(refusal, now)),
        "suggestion": "" if refusal is None else refusal.suggestion,
        "evaluations": [message_data(evaluation) for evaluation in evaluations],
    }


def decision_row(record: DecisionRecord) -> Json:
    """A logged decision in a list: its answer in one line."""
    row = _record(record)
    detail = json.loads(record.detail or "{}")
    if record.kind == ADMISSION and "decision" in detail:
        decision = recompute(detail)
        row["candidate"] = "" if decision.candidate is None else decision.candidate.name
        row["pin_state"] = decision.pin_state.name
        row["message"] = "" if decision.refusal is None else decision.refusal.message[:SHORTENED]
        row["tier"] = "" if decision.candidate is None else decision.candidate.tier.name.lower()
    elif record.kind == ADMISSION:
        row["candidate"] = record.subject
    else:
        row["message"] = str(detail.get("message") or detail.get("reasoning") or "")[:SHORTENED]
    return row


def decision_whole(record: DecisionRecord) -> Json:
    """A logged decision with its explanation, computed again from what the log holds, and with all that it read."""
    row, detail = _record(record), json.loads(record.detail or "{}")
    if record.kind == ADMISSION and "decision" in detail:
        inputs = admission_inputs(detail)
        decision = decide(*inputs)
        rule = rule_of(decision, inputs.route)
        row["explanation"] = explanation(decision, rule, decision.now, record.decide_time)
    elif record.kind == ADMISSION:
        row["explanation"] = {"verdict": record.outcome, "candidate": record.subject, "rule": BYPASSED_RULE}
    elif record.reason in RefusalReason.__members__:
        row["explanation"] = {
            "verdict": record.outcome,
            "rule": REFUSED_RULES[RefusalReason[record.reason]],
            "message": str(detail.get("message", "")),
        }
    return {**row, "detail": detail}


def status(now: StatusNow) -> Json:
    """As the RPC GetStatus answers."""
    return {
        "ready": now.ready,
        "features": list(now.features),
        "configuration_revision": now.revision,
        "configuration_error": now.configuration_error,
        "dependencies": dict(now.dependencies),
        "warnings": list(now.warnings),
    }


def flow(found: Flow, now: WallTime) -> Json:
    """As the RPC GetFlow answers, with the limits that the flow was started with."""
    limits = found.limits
    return {
        **message_data(flow_mapping.flow_message(found, now)),
        "limits": {
            "depth": limits.max_depth,
            "fan_out": limits.max_fan_out,
            "tokens": str(limits.max_tokens),
            "time": f"{limits.timeout / SECOND:g}s",
        },
        "as_of_time": _time(now),
    }


def rates(samples: Sequence[Sample]) -> Json:
    """What was decided, 10 s by 10 s."""
    return {"samples": [{"end_time": _time(sample.end), **sample.counts} for sample in samples]}


def _record(record: DecisionRecord) -> Json:
    row = message_data(selection_mapping.decision_message(record))
    row.pop("detail_json", None)
    return row


def _time(wall: WallTime) -> str:
    return timestamp(wall).ToJsonString()
