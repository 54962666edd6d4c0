"""FlowService: map, call, map back. And the flow that an admission names."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

import grpc
from tidegate.v1 import admission_pb2
from tidegate.v1 import flow_pb2 as wire
from tidegate.v1 import flow_pb2_grpc as rpc

from tidegate_server.ports import FlowStore
from tidegate_server.rpc import flow_mapping as mapping
from tidegate_server.rpc.guard import Context, current_caller
from tidegate_server.usecases.admit import FlowContext
from tidegate_server.usecases.flow_status import WatchFlows, get_flow, list_flows, page_token
from tidegate_server.usecases.flows import EnterHop, FlowGuard, HopOfAdmission, PlaceOfAdmission


class FlowVerbs(NamedTuple):
    """The use cases behind the methods, and the store that is read for the status."""

    guard: FlowGuard
    enter_hop: EnterHop
    watch_flows: WatchFlows
    store: FlowStore


class FlowServicer(rpc.FlowServiceServicer):
    """One method a verb."""

    def __init__(self, verbs: FlowVerbs) -> None:
        self._verbs = verbs

    async def EnterHop(self, request: wire.EnterHopRequest, context: Context) -> wire.EnterHopResponse:
        """Check and charge one hop."""
        asked = mapping.hop_request(request, _metadata(context))
        return mapping.enter_response(await self._verbs.enter_hop(asked, current_caller()))

    async def ExitHop(self, request: wire.ExitHopRequest, context: Context) -> wire.ExitHopResponse:
        """Close one hop."""
        traceparent = mapping.trace_context(request.traceparent, "", _metadata(context)).traceparent
        exited = await self._verbs.guard.exit(
            traceparent, request.hop_id, request.tokens, request.success, current_caller()
        )
        return mapping.exit_response(exited)

    async def RecordTokens(self, request: wire.RecordTokensRequest, context: Context) -> wire.RecordTokensResponse:
        """Add tokens to one hop."""
        traceparent = mapping.trace_context(request.traceparent, "", _metadata(context)).traceparent
        recorded = await self._verbs.guard.record(
            traceparent, request.hop_id, request.tokens, request.request_id, current_caller()
        )
        return mapping.record_response(recorded)

    async def GetFlow(self, request: wire.GetFlowRequest, context: Context) -> wire.GetFlowResponse:
        """One flow."""
        found = await get_flow(self._verbs.store, request.flow_id, current_caller())
        return wire.GetFlowResponse(flow=mapping.flow_message(*found))

    async def ListFlows(self, request: wire.ListFlowsRequest, context: Context) -> wire.ListFlowsResponse:
        """A page of flows."""
        page, now = await list_flows(
            self._verbs.store,
            current_caller(),
            page_size=request.page_size,
            page_token=request.page_token,
            open_only=request.open_only,
        )
        flows = [mapping.flow_message(flow, now) for flow in page.flows]
        return wire.ListFlowsResponse(flows=flows, next_page_token=page_token(page.next))

    async def WatchFlows(
        self, request: wire.WatchFlowsRequest, context: Context
    ) -> AsyncIterator[wire.WatchFlowsResponse]:
        """Snapshots, then changes."""
        async with aclosing(self._verbs.watch_flows(request.flow_id, current_caller())) as events:
            async for event in events:
                yield mapping.watch_response(event)


def flow_contexts(guard: FlowGuard) -> Callable[[admission_pb2.AdmitRequest, Context], FlowContext | None]:
    """What finds the flow that an admission names; raises InvalidRequest, FlowStartNotAllowed."""

    def find(request: admission_pb2.AdmitRequest, context: Context) -> FlowContext | None:
        which = request.WhichOneof("flow_context")
        if which == "hop":
            asked = guard.hop(mapping.hop_request(request.hop, _metadata(context)), current_caller(), "hop.")
            return HopOfAdmission(guard, asked, dry_run=request.dry_run)
        if which == "flow":
            place = mapping.flow_request(request.flow, _metadata(context))
            return PlaceOfAdmission(guard, guard.place(place, current_caller(), "flow."))
        return None

    return find


def _metadata(context: Context) -> Iterable[tuple[str, str | bytes]]:
    return context.invocation_metadata() or ()


def add_to(server: grpc.aio.Server, servicer: FlowServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_FlowServiceServicer_to_server(servicer, server)
    return wire.DESCRIPTOR.services_by_name["FlowService"].full_name
