"""The flow guard's limits as a table that can be read beside §8 of the contract.

`place` finds where a hop would stand; `RULES` are asked in their order, and the first that applies is the answer. A hop
is refused when it *would* exceed a limit. Nothing is changed here.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from tidegate_server.core.flow.model import Flow, FlowKey, FlowLimits, Hop, Proof, Signed, Unproved, saturated
from tidegate_server.core.model import SECOND, Nanos, RefusalReason, WallTime
from tidegate_server.core.refusals import Refusal, for_people, grouped

R = RefusalReason


class Life(NamedTuple):
    """From when a flow runs, and how long it may."""

    start: WallTime
    timeout: Nanos


class Place(NamedTuple):
    """Where a hop or an inference request would stand.

    `flow` is None when its state is not there; `parent` is None for the gateway's own call, and when there is no
    parent. `agent` is the caller, "" for the gateway. An inference request (`target` None) charges nothing and stands
    on its own hop, which is then `parent`.
    """

    key: FlowKey
    flow: Flow | None
    parent: Hop | None
    proof: Proof
    agent: str
    target: str | None
    reserve: int
    now: WallTime

    @property
    def life(self) -> Life | None:
        """The flow that the caller stands in: by its state; by the signed start where that is gone, or a later life's.

        None: nothing proves that there was one.
        """
        if self.flow is not None and (self.parent is not None or not self.agent):
            return Life(self.flow.start, self.flow.limits.timeout)
        return Life(self.proof.start, self.proof.timeout) if isinstance(self.proof, Signed) else None

    @property
    def limits(self) -> FlowLimits:
        """The flow's; asked only where there is a flow."""
        return self.flow.limits if self.flow is not None else FlowLimits()

    @property
    def depth(self) -> int:
        """The length of the chain that the hop would have."""
        return (self.parent.depth if self.parent is not None else 0) + 1

    @property
    def chain(self) -> tuple[str, ...]:
        """The agents above."""
        return self.parent.chain if self.parent is not None else ()

    @property
    def hops(self) -> int:
        """All invocations so far."""
        return len(self.flow.hops) if self.flow is not None else 0

    @property
    def used(self) -> int:
        """Tokens charged. For an inference request its own hop's unspent reservation counts as left."""
        used = self.flow.used if self.flow is not None else 0
        if self.target is None and self.parent is not None:
            used -= self.parent.charge - self.parent.recorded
        return used


def find_parent(flow: Flow, proof: Proof, agent: str) -> Hop | None:
    """The hop from which `agent` calls: the signed one; without a `tidegate` member the deepest open hop into it.

    Of equally deep ones it is the one entered last. A bad member finds none; nor does one of an earlier life of this
    trace id, whose hops are gone.
    """
    if isinstance(proof, Signed):
        return flow.hops.get(proof.hop_id)
    if proof is Unproved.BAD_MEMBER:
        return None
    into = (hop for hop in flow.open.values() if hop.target == agent)
    return max(into, key=lambda hop: (hop.depth, hop.order), default=None)


def is_unknown(place: Place) -> bool:
    """No parent can be proved, and no signed start tells that the flow's time is over."""
    return bool(place.agent) and place.parent is None and not is_out_of_time(place)


def is_out_of_time(place: Place) -> bool:
    """The flow that the caller stands in has run longer than it may."""
    life = place.life
    return life is not None and life.start + life.timeout < place.now


class Rule(NamedTuple):
    """One row: the reason, when it applies, how it is told, and what would help."""

    reason: RefusalReason
    applies: Callable[[Place], bool]
    message: Callable[[Place], str]
    suggestion: str


def _who(place: Place) -> str:
    return f'"{place.agent}"' if place.agent else "the gateway"


def _moment(time: WallTime) -> str:
    try:
        return datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def _flow(place: Place) -> str:
    assert place.life is not None, "only a flow with a start runs out of something"
    return f"Flow {place.key.trace_id}, started at {_moment(place.life.start)},"


def _unknown(place: Place) -> str:
    if place.proof is Unproved.BAD_MEMBER:
        return (
            f"The tidegate member of tracestate does not prove a hop into {_who(place)} in flow {place.key.trace_id}."
        )
    if place.flow is None:
        return f"Flow {place.key.trace_id} is not known."
    if isinstance(place.proof, Signed):
        return f"Flow {place.key.trace_id} has no hop {place.proof.hop_id}."
    return f"Flow {place.key.trace_id} has no open hop into {_who(place)}."


def _out_of_time(place: Place) -> str:
    assert place.life is not None, "only a flow with a start runs out of time"
    return f"{_flow(place)} had {for_people(place.life.timeout)}, and they are over."


def _closed(place: Place) -> str:
    return f"The hop of {_who(place)} has exited; nothing can be called from it any more."


def _too_deep(place: Place) -> str:
    return f"The hop would be at depth {place.depth}; the flow's limit is {place.limits.max_depth}."


def _cycle(place: Place) -> str:
    return f"The hop would close a cycle: {' → '.join((*place.chain, place.target or ''))}."


def _fan_out(place: Place) -> str:
    return f"{_flow(place)} has had {grouped(place.hops)} of {grouped(place.limits.max_fan_out)} hops."


def _tokens(place: Place) -> str:
    would = f", and the hop would reserve {grouped(place.reserve)}" if place.reserve else ""
    used, limit = grouped(saturated(place.used)), grouped(place.limits.max_tokens)
    return f"{_flow(place)} has used or reserved {used} of {limit} tokens{would}."


RULES: tuple[Rule, ...] = (
    Rule(R.FLOW_UNKNOWN, is_unknown, _unknown, "pass on traceparent and tracestate of the grant unchanged"),
    Rule(R.FLOW_TIMEOUT, is_out_of_time, _out_of_time, "begin a new flow"),
    Rule(
        R.FLOW_HOP_CLOSED,
        lambda p: p.parent is not None and p.parent.end is not None,
        _closed,
        "begin a new flow",
    ),
    Rule(
        R.FLOW_DEPTH_EXCEEDED,
        lambda p: p.target is not None and p.depth > p.limits.max_depth,
        _too_deep,
        "a call from an agent nearer to the start",
    ),
    Rule(
        R.FLOW_CYCLE_DETECTED,
        lambda p: p.target in p.chain,
        _cycle,
        "return the result to the agent that waits",
    ),
    Rule(
        R.FLOW_FAN_OUT_EXCEEDED,
        lambda p: p.target is not None and p.hops + 1 > p.limits.max_fan_out,
        _fan_out,
        "finish with what is there",
    ),
    Rule(
        R.FLOW_TOKENS_EXHAUSTED,
        lambda p: p.used >= p.limits.max_tokens or p.used + p.reserve > p.limits.max_tokens,
        _tokens,
        "a smaller reservation, or the exit of a hop that holds one",
    ),
)
"""§8, in the contract's order. An inference request (`target` None) charges no hop: depth and fan-out do not apply."""


def first_refusal(place: Place, rules: tuple[Rule, ...] = RULES) -> Refusal | None:
    """The first rule that applies, as an answer; None: nothing stands against it."""
    for rule in rules:
        if rule.applies(place):
            return Refusal(rule.reason, rule.message(place), rule.suggestion)
    return None
