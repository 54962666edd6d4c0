"""FlowService: map, call, map back. And the flow that an admission names."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

import grpc
from tidegate.v1 import admission_pb2
from tidegate.v1 import flow_pb2 as wire
from tidegate.v1 import flow_pb2_grpc as rpc

from tidegate_server.core.flow.model import Granted
from tidegate_server.core.model import Caller
from tidegate_server.core.refusals import Refusal
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
    """What finds the flow that an admission names; it is looked at only when its turn comes."""

    def find(request: admission_pb2.AdmitRequest, context: Context) -> FlowContext | None:
        if request.WhichOneof("flow_context") is None:
            return None
        return _NamedFlow(guard, request, _metadata(context), current_caller())

    return find


class _NamedFlow:
    """A `FlowContext` that is read when it is first checked: a request that is refused before has no flow to be wrong.

    So `check` raises what reading raises, too: InvalidRequest, FlowStartNotAllowed.
    """

    def __init__(
        self,
        guard: FlowGuard,
        request: admission_pb2.AdmitRequest,
        metadata: Iterable[tuple[str, str | bytes]],
        caller: Caller,
    ) -> None:
        self._guard = guard
        self._request = request
        self._metadata = metadata
        self._caller = caller
        self._read: HopOfAdmission | PlaceOfAdmission | None = None

    async def check(self) -> Refusal | None:
        """What the flow guard says now."""
        guard, request = self._guard, self._request
        if request.HasField("hop"):
            asked = guard.hop(mapping.hop_request(request.hop, self._metadata), self._caller, "hop.")
            self._read = HopOfAdmission(guard, asked, dry_run=request.dry_run)
        else:
            place = mapping.flow_request(request.flow, self._metadata)
            self._read = PlaceOfAdmission(guard, guard.place(place, self._caller, "flow."))
        return await self._read.check()

    async def enter(self) -> Granted | Refusal | None:
        """Enter the hop that was checked."""
        assert self._read is not None
        return await self._read.enter()

    async def cancel(self) -> None:
        """Take the entered hop back."""
        assert self._read is not None
        await self._read.cancel()


def _metadata(context: Context) -> Iterable[tuple[str, str | bytes]]:
    return context.invocation_metadata() or ()


def add_to(server: grpc.aio.Server, servicer: FlowServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_FlowServiceServicer_to_server(servicer, server)
    return wire.DESCRIPTOR.services_by_name["FlowService"].full_name
