"""An admission's inputs as data: what the log keeps of them, and the way back to the same decision (§10).

A detail holds the route's policy, the request without its worker's id, the pin, the facts of every candidate that was
looked at, and the flow guard's word. `recompute` builds them again and asks the core. Ages and ends of facts are
written relative to the decision's instant, in nanoseconds: what a reader wants to know, and all that was used.
"""

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.facts import NO_FACTS, group_facts
from tidegate_server.core.model import (
    NEVER,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    CorruptPin,
    Fact,
    FactKey,
    Health,
    HealthState,
    Instant,
    Pin,
    Quota,
    RefusalReason,
    Request,
    StoredPin,
    Tier,
    Value,
)
from tidegate_server.core.policy import Candidate, Route, Saturation
from tidegate_server.core.refusals import Refusal
from tidegate_server.core.verdicts import Groups

Json = dict[str, Any]


class AdmissionInputs(NamedTuple):
    """The arguments of `decide`."""

    route: Route
    request: Request
    pin: StoredPin | None
    groups: Groups
    now: Instant
    flow: Refusal | None


def admission_detail(
    route: Route,
    request: Request,
    pin: StoredPin | None,
    decision: Decision,
    flow: Refusal | None = None,
) -> Json:
    """All that `decide` read for `decision`, and its verdicts, as JSON data. `worker_id` is left out.

    `pin` and `flow` are those that the decision was given.
    """
    now = decision.now
    return {
        "now": now,
        "route": _route_data(route),
        "request": _request_data(request),
        "pin": None if pin is None else _pin_data(pin),
        "flow": None if flow is None else _refusal_data(flow),
        "facts": [_fact_data(fact, now) for fact in _facts_known(route, decision)],
        "decision": _decision_data(decision),
    }


class DetailWriter:
    """Makes the JSON text of details, each equal to `json.dumps(admission_detail(…))` but for the order of its keys.

    It takes a sixth of the time, because what many decisions share is kept as text: a route, a fact, a pin's binding,
    verdicts. What is kept is immutable, and known by its identity or by all that its text says. Not for use by several
    threads at once.
    """

    _KEPT = 4096

    def __init__(self) -> None:
        self._routes: dict[int, tuple[Route, str, tuple[tuple[str, str], ...]]] = {}
        self._facts: dict[int, tuple[Fact, str]] = {}
        self._texts: dict[tuple[object, ...], str] = {}

    def text(
        self,
        route: Route,
        request: Request,
        pin: StoredPin | None,
        decision: Decision,
        flow: Refusal | None = None,
    ) -> str:
        """The detail as JSON text; arguments as in `admission_detail`."""
        now = decision.now
        kept = self._routes.get(id(route)) or self._keep_route(route)
        facts = [self._fact(f, now) for subject in kept[2] for f in decision.groups.get(subject, NO_FACTS).all]
        return (
            f'{{"now": {now}, "route": {kept[1]}, "facts": [{", ".join(facts)}], "request": {self._request(request)},'
            f' "pin": {self._pin(pin)}, "flow": {"null" if flow is None else json.dumps(_refusal_data(flow))},'
            f' "decision": {self._decision(decision)}}}'
        )

    def _keep_route(self, route: Route) -> tuple[Route, str, tuple[tuple[str, str], ...]]:
        if len(self._routes) >= self._KEPT:
            self._routes.clear()
        kept = self._routes[id(route)] = (route, json.dumps(_route_data(route)), _subjects(route))
        return kept

    def _fact(self, fact: Fact, now: Instant) -> str:
        kept = self._facts.get(id(fact))
        if kept is None:
            if len(self._facts) >= self._KEPT:
                self._facts.clear()
            kept = self._facts[id(fact)] = (fact, json.dumps(_timeless_fact_data(fact))[1:])
        ends_in = "null" if fact.ends_at == NEVER else fact.ends_at - now
        return f'{{"age": {now - fact.captured}, "fresh_for": {fact.stale_at - now}, "ends_in": {ends_in}, {kept[1]}'

    def _request(self, request: Request) -> str:
        rest = self._texts.get(request[2:]) or self._keep_text(request[2:], _request_data(request), "request_bytes")
        return f'{{"request_bytes": {request.request_bytes}, {rest}'

    def _pin(self, pin: StoredPin | None) -> str:
        if not isinstance(pin, Pin):
            return "null" if pin is None else json.dumps(_pin_data(pin))
        key = pin[1:10] + pin[11:]
        rest = self._texts.get(key) or self._keep_text(key, _pin_data(pin), "pin_id", "create_time")
        return f'{{"pin_id": "{pin.pin_id.hex()}", "create_time": {pin.create_time}, {rest}'

    def _decision(self, decision: Decision) -> str:
        said = tuple((e.candidate.name, e.verdict, e.blocker) for e in decision.evaluations)
        candidate, refusal = decision.candidate, decision.refusal
        reason = None if refusal is None else refusal.reason
        name = None if candidate is None else candidate.name
        key = (decision.verdict, decision.pin_state, name, reason, said, decision.wait_for)
        rest = self._texts.get(key) or self._keep_text(key, _decision_data(decision))
        return f"{{{rest}"

    def _keep_text(self, key: tuple[object, ...], data: Json, *without: str) -> str:
        """The text of what the key names, from behind its brace on, without the members that are written each time."""
        if len(self._texts) >= self._KEPT:
            self._texts.clear()
        for name in without:
            del data[name]
        text = self._texts[key] = json.dumps(data)[1:]
        return text


def admission_inputs(detail: Mapping[str, Any]) -> AdmissionInputs:
    """The arguments that `decide` had, rebuilt from a detail (`worker_id` is "", which no decision reads)."""
    now: Instant = detail["now"]
    facts: dict[tuple[str, str], list[Fact]] = {}
    for data in detail["facts"]:
        fact = _fact_of(data, now)
        facts.setdefault(fact.key[:2], []).append(fact)
    return AdmissionInputs(
        _route_of(detail["route"]),
        _request_of(detail["request"]),
        None if detail["pin"] is None else _pin_of(detail["pin"]),
        {subject: group_facts(of_subject) for subject, of_subject in facts.items()},
        now,
        None if detail["flow"] is None else _refusal_of(detail["flow"]),
    )


def recompute(detail: Mapping[str, Any]) -> Decision:
    """The decision, computed again from what the log holds of it."""
    return decide(*admission_inputs(detail))


def _facts_known(route: Route, decision: Decision) -> Iterable[Fact]:
    """The facts of all candidates of the route as they were then, those that no verdict needed, too: for `replay`."""
    return [fact for subject in _subjects(route) for fact in decision.groups.get(subject, NO_FACTS).all]


def _subjects(route: Route) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys(key for c in route.candidates for key in (c.account_key, c.model_key)))


def _decision_data(decision: Decision) -> Json:
    return {
        "verdict": decision.verdict.name,
        "pin_state": decision.pin_state.name,
        "candidate": decision.candidate.name if decision.candidate else "",
        "reason": decision.refusal.reason.name if decision.refusal else "",
        "evaluations": [
            {"candidate": e.candidate.name, "verdict": e.verdict.name, "blocker": e.blocker.name}
            for e in decision.evaluations
        ],
        "wait_for": list(decision.wait_for),
    }


def _route_data(route: Route) -> Json:
    return {
        "name": route.name,
        "purpose": route.purpose,
        "candidates": [_candidate_data(candidate) for candidate in route.candidates],
        "fingerprint": route.fingerprint,
        "context_window": route.context_window,
        "max_context_bytes": route.max_context_bytes,
        "min_remaining_percent": route.min_remaining_percent,
        "allow_paid": route.allow_paid,
        "prefer_paid_flash": route.prefer_paid_flash,
        "require_flow": route.require_flow,
        "paid_on": sorted(blocker.name for blocker in route.paid_on),
        "auto_compact_token_limit": route.auto_compact_token_limit,
    }


def _route_of(data: Mapping[str, Any]) -> Route:
    candidates = tuple(_candidate_of(candidate) for candidate in data["candidates"])
    return Route(**{**data, "candidates": candidates, "paid_on": frozenset(Blocker[name] for name in data["paid_on"])})


def _candidate_data(candidate: Candidate) -> Json:
    saturation = candidate.saturation
    return {
        "name": candidate.name,
        "provider": candidate.provider,
        "model": candidate.model,
        "tier": candidate.tier.name,
        "credential_source": candidate.credential_source,
        "binding_fingerprint": candidate.binding_fingerprint,
        "reasoning_efforts": list(candidate.reasoning_efforts),
        "mapped_effort": candidate.mapped_effort,
        "required_windows": [list(window) for window in candidate.required_windows],
        "saturation": None if saturation is None else [saturation.max_waiting, saturation.max_kv_usage],
        "session_affinity": candidate.session_affinity,
    }


def _candidate_of(data: Mapping[str, Any]) -> Candidate:
    saturation = data["saturation"]
    return Candidate(
        **{
            **data,
            "tier": Tier[data["tier"]],
            "reasoning_efforts": tuple(data["reasoning_efforts"]),
            "required_windows": tuple((window, scope) for window, scope in data["required_windows"]),
            "saturation": None if saturation is None else Saturation(*saturation),
        }
    )


def _request_data(request: Request) -> Json:
    data = request._asdict()
    del data["worker_id"]
    return data


def _request_of(data: Mapping[str, Any]) -> Request:
    return Request(**{**data, "worker_id": "", "input_modalities": tuple(data["input_modalities"])})


def _pin_data(pin: StoredPin) -> Json:
    if isinstance(pin, CorruptPin):
        return {"pin_id": pin.pin_id.hex(), "corrupt": True}
    return {**pin._asdict(), "pin_id": pin.pin_id.hex(), "tier": pin.tier.name}


def _pin_of(data: Mapping[str, Any]) -> StoredPin:
    pin_id = bytes.fromhex(data["pin_id"])
    if data.get("corrupt"):
        return CorruptPin(pin_id)
    return Pin(**{**data, "pin_id": pin_id, "tier": Tier[data["tier"]]})


def _refusal_data(refusal: Refusal) -> Json:
    return {**refusal._asdict(), "reason": refusal.reason.name, "blocker": refusal.blocker.name}


def _refusal_of(data: Mapping[str, Any]) -> Refusal:
    return Refusal(**{**data, "reason": RefusalReason[data["reason"]], "blocker": Blocker[data["blocker"]]})


def _fact_data(fact: Fact, now: Instant) -> Json:
    return {**_fact_times(fact, now), **_timeless_fact_data(fact)}


def _fact_times(fact: Fact, now: Instant) -> Json:
    ends_in = None if fact.ends_at == NEVER else fact.ends_at - now
    return {"age": now - fact.captured, "fresh_for": fact.stale_at - now, "ends_in": ends_in}


def _timeless_fact_data(fact: Fact) -> Json:
    """All of a fact but what depends on when it is looked at."""
    return {
        "key": list(fact.key),
        "value": _value_data(fact.value),
        "observe_time": fact.observe_time,
        "end_time": fact.end_time,
        "ttl": fact.ttl,
        "sequence": fact.sequence,
        "collector": fact.collector,
        "identity": fact.identity,
    }


def _fact_of(data: Mapping[str, Any], now: Instant) -> Fact:
    key = FactKey(*data["key"])
    return Fact(
        key,
        _value_of(key.kind, data["value"]),
        captured=now - data["age"],
        stale_at=now + data["fresh_for"],
        ends_at=NEVER if data["ends_in"] is None else now + data["ends_in"],
        **{name: data[name] for name in ("observe_time", "end_time", "ttl", "sequence", "collector", "identity")},
    )


def _value_data(value: Value) -> Json:
    data: Json = value._asdict()
    if isinstance(value, Balance):
        data["amount"] = str(value.amount)
    if isinstance(value, Health | Availability):
        data["state"] = value.state.name
    if isinstance(value, Availability):
        data["blocker"] = value.blocker.name
    return data


def _value_of(kind: str, data: Mapping[str, Any]) -> Value:
    if kind == "health":
        return Health(**{**data, "state": HealthState[data["state"]]})
    if kind == "quota":
        return Quota(**data)
    if kind == "balance":
        return Balance(**{**data, "amount": Decimal(data["amount"])})
    return Availability(AvailabilityState[data["state"]], Blocker[data["blocker"]])
