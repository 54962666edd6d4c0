"""Flows and hops between the wire and the core, and where a call's trace context is found."""

from collections.abc import Iterable
from typing import NamedTuple

from tidegate.v1 import flow_pb2 as wire
from tidegate.v1 import types_pb2

from tidegate_server.core.flow.model import (
    EventKind,
    Exited,
    Flow,
    FlowEvent,
    Granted,
    Hop,
    Recorded,
    saturated,
)
from tidegate_server.core.model import Verdict, WallTime
from tidegate_server.core.refusals import Refusal
from tidegate_server.rpc.fact_mapping import timestamp
from tidegate_server.rpc.grant_mapping import grant_message, remaining_message
from tidegate_server.rpc.mapping import refusal_message
from tidegate_server.usecases.flow_status import EventsLost, FlowSnapshot, Watched
from tidegate_server.usecases.flows import FlowRequest, HopRequest


class TraceContext(NamedTuple):
    """A call's trace context as text, unread."""

    traceparent: str
    tracestate: str


def trace_context(traceparent: str, tracestate: str, metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext:
    """The message's own trace context; where it has none, that of the call's metadata.

    A message that has a traceparent is taken at its word, tracestate included, empty or not: the two belong together,
    and an instrumented gateway's metadata are about its own span, not about the agent's. Several metadata of one name
    are joined by commas, as W3C says for tracestate; two traceparents so are an invalid one.
    """
    if traceparent:
        return TraceContext(traceparent, tracestate)
    found: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
    for key, value in metadata:
        if key in found and isinstance(value, str):
            found[key].append(value)
    return TraceContext(",".join(found["traceparent"]), tracestate or ",".join(found["tracestate"]))


def hop_request(message: wire.EnterHopRequest, metadata: Iterable[tuple[str, str | bytes]]) -> HopRequest:
    """The hop that was asked for."""
    return HopRequest(
        *trace_context(message.traceparent, message.tracestate, metadata),
        message.caller_agent,
        message.target_agent,
        message.request_id,
        message.reserve_tokens,
        message.profile,
    )


def flow_request(message: wire.FlowCheck, metadata: Iterable[tuple[str, str | bytes]]) -> FlowRequest:
    """The place in a flow that was told."""
    return FlowRequest(*trace_context(message.traceparent, message.tracestate, metadata), message.agent)


def enter_response(answer: Granted | Refusal) -> wire.EnterHopResponse:
    """The answer to an EnterHop."""
    if isinstance(answer, Granted):
        return wire.EnterHopResponse(verdict=types_pb2.VERDICT_ADMITTED, grant=grant_message(answer))
    return wire.EnterHopResponse(
        verdict=Verdict.REFUSED.value,  # type: ignore[arg-type] # the enums share their numbers
        refusal=refusal_message(answer, 0),
    )


def exit_response(answer: Exited) -> wire.ExitHopResponse:
    """The answer to an ExitHop."""
    return wire.ExitHopResponse(closed=answer.closed, remaining=remaining_message(answer.remaining))


def record_response(answer: Recorded) -> wire.RecordTokensResponse:
    """The answer to a RecordTokens."""
    return wire.RecordTokensResponse(
        used=answer.used, remaining=answer.remaining, exhausted=answer.exhausted, hop_open=answer.hop_open
    )


def flow_message(flow: Flow, now: WallTime) -> wire.Flow:
    """A flow as it stands at `now`."""
    return wire.Flow(
        flow_id=flow.key.trace_id,
        root_agent=flow.root_agent,
        start_time=timestamp(flow.start),
        max_depth_reached=flow.deepest,
        invocations=len(flow.hops),
        tokens=flow.tokens,
        open_hops=len(flow.open),
        refusals=min(flow.refusals, (1 << 31) - 1),
        hops=[hop_message(hop) for hop in flow.hops.values()],
        remaining=remaining_message(flow.left(flow.deepest, now)),
    )


def hop_message(hop: Hop) -> wire.FlowHop:
    """A hop as it stands."""
    return wire.FlowHop(
        hop_id=hop.hop_id,
        parent_hop_id=hop.parent,
        caller_agent=hop.caller,
        target_agent=hop.target,
        depth=hop.depth,
        start_time=timestamp(hop.start),
        end_time=None if hop.end is None else timestamp(hop.end),
        tokens=saturated(hop.charge),
        success=hop.success,
    )


def watch_response(what: Watched) -> wire.WatchFlowsResponse:
    """One event of a watch. A hop that was taken back ends like one that failed."""
    if isinstance(what, FlowSnapshot):
        return wire.WatchFlowsResponse(snapshot=flow_message(*what), flow_id=what.flow.key.trace_id)
    if isinstance(what, EventsLost):
        flow_id = what.key.trace_id if what.key is not None else ""
        return wire.WatchFlowsResponse(dropped=wire.EventsDropped(count=what.lost), flow_id=flow_id)
    return _event(what)


def _event(event: FlowEvent) -> wire.WatchFlowsResponse:
    flow_id = event.key.trace_id
    if event.ask is not None and event.refusal is not None:
        refused = wire.HopRefused(
            caller_agent=event.ask.caller,
            target_agent=event.ask.target,
            refusal=refusal_message(event.refusal, 0),
        )
        return wire.WatchFlowsResponse(refused=refused, flow_id=flow_id)
    assert event.hop is not None, "an event that is shown is about a hop"
    hop = hop_message(event.hop)
    if event.kind is EventKind.ENTERED:
        return wire.WatchFlowsResponse(entered=hop, flow_id=flow_id)
    return wire.WatchFlowsResponse(exited=hop, flow_id=flow_id)
