"""Flows on the way to the functions of functions/flows.lua and back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate_server.core.flow.model import (
    EventKind,
    Flow,
    FlowAsk,
    FlowEvent,
    FlowKey,
    FlowLimits,
    Hop,
    HopAsk,
    Proof,
    Record,
    Refused,
    Remaining,
    Signed,
    Unproved,
)
from tidegate_server.core.flow.rules import RULES, Place
from tidegate_server.core.model import RefusalReason
from tidegate_server.core.refusals import Refusal

_RULES = {rule.reason: rule for rule in RULES}
_REPEAT_CLOSED = Refusal(
    RefusalReason.FLOW_HOP_CLOSED,
    "The hop that this request_id stands for has exited.",
    "a new request_id for a new attempt",
)


def proof_words(proof: Proof, agent: str) -> tuple[str, ...]:
    """What stands for a proof, and who shows it."""
    match proof:
        case Signed(hop_id, start, timeout):
            return "signed", hop_id, str(start), str(timeout), agent
        case Unproved.NO_MEMBER:
            return "none", "", "0", "0", agent
        case _:
            return "bad", "", "0", "0", agent


def hop_words(ask: HopAsk) -> tuple[str, ...]:
    """A hop that wants to be entered."""
    limits = ask.limits.bounded()
    return (
        *proof_words(ask.proof, ask.caller),
        ask.target,
        ask.hop_id,
        str(limits.max_depth),
        str(limits.max_fan_out),
        str(limits.max_tokens),
        str(limits.timeout),
        str(ask.state_ttl),
        ask.request_id,
        str(ask.reserve),
    )


def read_hop(packed: bytes | str) -> Hop:
    """A hop of its JSON array. Raises ValueError for what is none."""
    words = json.loads(packed)
    if not isinstance(words, list) or len(words) != 19:
        raise ValueError("not a hop")
    hop_id, parent, caller, target, chain, order, start, reserve, request, depth, fan_out, tokens, time, *rest = words
    recorded, finish, success, claims, _, own_depth = rest
    return Hop(
        hop_id,
        parent,
        caller,
        target,
        int(own_depth),
        tuple(chain),
        int(order),
        int(start),
        int(reserve),
        request,
        Remaining(int(depth), int(fan_out), int(tokens), int(time)),
        int(recorded),
        int(finish) if finish else None,
        bool(success) if finish else None,
        int(claims),
    )


def read_flow(key: FlowKey, fields: Sequence[bytes]) -> Flow:
    """A flow of all fields of its hash. Raises ValueError or KeyError for what is none."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    limits = FlowLimits(*(int(named[name]) for name in (b"max_depth", b"max_fan_out", b"max_tokens", b"timeout")))
    flow = Flow(key, limits, int(named[b"start"]))
    for hop in sorted(_hops(named), key=lambda hop: hop.order):
        flow.put(hop)
    flow.keep_until, flow.refusals = int(named[b"keep"]), int(named[b"refusals"])
    for name, value in named.items():
        if name.startswith(b"t:"):
            hop_id, tokens = json.loads(value)
            request = name[2:].decode()
            flow.records[request] = Record(request, hop_id, int(tokens))
    return flow


def _hops(named: Mapping[bytes, bytes]) -> list[Hop]:
    return [read_hop(value) for name, value in named.items() if name.startswith(b"h:")]


class _SeenFlow(Flow):
    """A flow as a refusal shows it: its sums, without its hops."""

    __slots__ = ("count",)
    count: int


class _SeenPlace(Place):
    """A place in such a flow."""

    __slots__ = ()

    @property
    def hops(self) -> int:
        """All invocations so far."""
        return self.flow.count if isinstance(self.flow, _SeenFlow) else 0


def read_refusal(ask: HopAsk | FlowAsk, words: Sequence[Any]) -> Refused:
    """The answer behind a reason: told by the same sentences as everywhere."""
    reason, now, shown, parent = words[1].decode(), int(words[2]), words[3], words[4]
    if reason == "repeat_closed":
        return Refused(_REPEAT_CLOSED)
    flow = None
    if shown:
        start, timeout, depth, fan_out, tokens, used, count = (int(word) for word in shown)
        flow = _SeenFlow(ask.key, FlowLimits(depth, fan_out, tokens, timeout), start)
        flow.used, flow.count = used, count
    hop = read_hop(parent) if parent else None
    if isinstance(ask, HopAsk):
        place = _SeenPlace(ask.key, flow, hop, ask.proof, ask.caller, ask.target, ask.reserve, now)
    else:
        place = _SeenPlace(ask.key, flow, hop, ask.proof, ask.agent, None, 0, now)
    rule = _RULES[RefusalReason[reason]]
    return Refused(Refusal(rule.reason, rule.message(place), rule.suggestion))


def refusal_event(ask: HopAsk, refusal: Refusal, origin: str) -> str:
    """A refusal, for the watchers of other replicas."""
    told = [refusal.reason.name, refusal.message, refusal.suggestion, ask.caller, ask.target, ask.request_id]
    return json.dumps([origin, "refused", ask.key.namespace, ask.key.trace_id, json.dumps(told)])


def read_event(message: bytes, origin: str) -> FlowEvent | None:
    """A change that another replica made; None for one of our own. Raises ValueError for what is none."""
    source, kind, namespace, trace_id, packed = json.loads(message)
    if source == origin:
        return None
    key = FlowKey(namespace, trace_id)
    if kind == "refused":
        reason, text, suggestion, caller, target, request = json.loads(packed)
        ask = HopAsk(key, Unproved.NO_MEMBER, caller, target, "", FlowLimits(), 0, request)
        return FlowEvent(EventKind.REFUSED, key, ask=ask, refusal=Refusal(RefusalReason[reason], text, suggestion))
    return FlowEvent(EventKind(kind), key, hop=read_hop(packed) if packed else None)
