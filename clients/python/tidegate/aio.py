"""The asyncio client. One client belongs to one event loop and holds one connection."""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidegate import requests
from tidegate.coalesce import Coalescer
from tidegate.credentials import Connection, Tls
from tidegate.errors import CredentialError, TidegateError, from_rpc_error
from tidegate.feed import Feed
from tidegate.results import Admission, AdmitOptions, PinAnswer
from tidegate.retry import NO_RETRY, RetryPolicy
from tidegate.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    flow_pb2,
    flow_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    selection_pb2,
    selection_pb2_grpc,
    types_pb2,
)

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)


class AsyncClient:
    """All that a gateway, a collector or an operator asks of a server.

    Every unary call has a deadline (`timeout` seconds, 10 by default), is repeated on UNAVAILABLE within it, and raises
    a `TidegateError` when there was no decision.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        tls: Tls | None = None,
        token_file: str | Path | None = None,
        insecure: bool = False,
        timeout: float = requests.DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
        coalesce: bool = False,
    ) -> None:
        """Open a connection lazily; nothing is sent yet.

        Args:
            target: `host:port` or `unix:/path`; None: TIDEGATE_SERVER, else 127.0.0.1:50051.
            tls: TLS or mTLS; None: in clear, for this machine only.
            token_file: file of the bearer token; None: found by `find_local_token`.
            insecure: allow a token in clear to another machine.
            timeout: deadline of each call in seconds, its retries included.
            retry: how UNAVAILABLE is repeated.
            coalesce: let concurrent admissions ride together in AdmitBatch, for a busy gateway (`tidegate.coalesce`).
        """
        self.connection = Connection.find(target, tls=tls, token_file=token_file, insecure=insecure)
        self.timeout = timeout
        self.retry = retry or RetryPolicy()
        self._channel = self.connection.open_asyncio()
        self._admission = admission_pb2_grpc.AdmissionServiceStub(self._channel)
        self._coalescer = Coalescer(self._send_batch) if coalesce else None
        self._operator = operator_pb2_grpc.OperatorServiceStub(self._channel)
        self._check: aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse] = (
            health_pb2_grpc.HealthStub(self._channel).Check  # type: ignore[attr-defined]
        )
        self.flows = AsyncFlows(self, flow_pb2_grpc.FlowServiceStub(self._channel))
        """FlowService."""
        self.agents = AsyncAgents(self, selection_pb2_grpc.SelectionServiceStub(self._channel))
        """SelectionService."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        await self._channel.close()

    async def call(
        self,
        method: aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        timeout: float | None = None,  # noqa: ASYNC109 - a gRPC deadline, which the server sees, too
        *,
        repeatable: bool = True,
    ) -> _Response:
        """Make one unary call of any stub with this client's identity, deadline and retries."""
        policy = self.retry if repeatable else NO_RETRY
        deadline = policy.clock() + (self.timeout if timeout is None else timeout)
        async for attempt in policy.asyncio(deadline):
            with attempt:
                left = max(0.0, deadline - policy.clock())
                try:
                    response = await method(request, timeout=left, metadata=self.connection.metadata())
                except grpc.RpcError as error:
                    raise from_rpc_error(error) from None
                if response is None:  # what grpc.aio makes of bytes that are no message, where grpc itself raises
                    raise TidegateError("the answer cannot be read", code=grpc.StatusCode.INTERNAL)
                return response
        raise AssertionError("the retry loop ends by a return or an error")

    # --- gateways -----------------------------------------------------------------------------------------------------

    async def admit(
        self,
        model: str,
        worker_id: str,
        request_bytes: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        **options: Unpack[AdmitOptions],
    ) -> Admission:
        """Ask whether this work may start, and where.

        Args:
            model: a route (`managed/routine`), a configured model or an alias.
            worker_id: the conversation's stable id.
            request_bytes: exact size of the serialized request as the caller sent it; needed for a route.
            timeout: seconds, instead of the client's.
            options: the other fields of AdmitRequest, by their names.

        Returns:
            The answer; a refusal is one, too. Look at `may_forward`, or call `require()`.
        """
        request = requests.admit_request(model, worker_id, request_bytes, options)
        if self._coalescer is None:
            return Admission(await self.call(self._admission.Admit, request, timeout))
        deadline = self.retry.clock() + (self.timeout if timeout is None else timeout)
        response = await self._coalescer.admit(request, deadline - self.retry.clock())
        if response is None:
            left = max(0.0, deadline - self.retry.clock())
            response = await self.call(self._admission.Admit, request, left)
        return Admission(response)

    async def _send_batch(
        self,
        batch: admission_pb2.AdmitBatchRequest,
        timeout: float,  # noqa: ASYNC109 - as above
    ) -> admission_pb2.AdmitBatchResponse:
        return await self.call(self._admission.AdmitBatch, batch, timeout, repeatable=False)

    async def admit_or_raise(
        self,
        model: str,
        worker_id: str,
        request_bytes: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        **options: Unpack[AdmitOptions],
    ) -> Admission:
        """Return an admission that may be forwarded, or raise AdmissionRefused."""
        admission = await self.admit(model, worker_id, request_bytes, timeout=timeout, **options)
        admission.require()
        return admission

    async def forwardable(
        self,
        model: str,
        worker_id: str,
        request_bytes: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        **options: Unpack[AdmitOptions],
    ) -> Admission:
        """Ask as `admit` does, and never raise for what the server, the network or the token does.

        An error stands in `Admission.error`, and `may_forward` is False: the one call of a gateway that fails closed.
        """
        try:
            admission = await self.admit(model, worker_id, request_bytes, timeout=timeout, **options)
            return requests.permitted(admission, options)
        except TidegateError as error:
            return requests.failed(error)
        except CredentialError as error:
            return requests.failed(TidegateError(str(error), code=grpc.StatusCode.UNAUTHENTICATED))

    async def admit_batch(
        self,
        batch: Sequence[admission_pb2.AdmitRequest],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> list[Admission]:
        """Ask for up to 256 requests at once; the answers come in the same order, each may be an error of its own."""
        request = admission_pb2.AdmitBatchRequest(requests=batch)
        response = await self.call(self._admission.AdmitBatch, request, timeout)
        return requests.admissions(response, len(batch))

    async def look_up_pin(self, model: str, worker_id: str, *, tenant: str = "") -> PinAnswer:
        """Read a worker's pin; none is the refusal PIN_MISSING."""
        request = requests.pin_request(model, worker_id, types_pb2.PIN_MODE_LOOKUP, tenant)
        return PinAnswer(await self.call(self._admission.Pin, request))

    async def establish_pin(
        self, model: str, worker_id: str, *, reasoning_effort: str = "", tenant: str = ""
    ) -> PinAnswer:
        """Bind a worker before its first request."""
        request = requests.pin_request(model, worker_id, types_pb2.PIN_MODE_ESTABLISH, tenant, reasoning_effort)
        return PinAnswer(await self.call(self._admission.Pin, request))

    async def capacity(self, providers: Iterable[str] = (), *, model: str = "") -> admission_pb2.CapacityResponse:
        """Read the facts of these providers (none: all); with a route in `model` also its candidates' verdicts now."""
        request = admission_pb2.CapacityRequest(providers=providers, model=model)
        return await self.call(self._admission.Capacity, request)

    async def catalog(self, *, include_hidden: bool = False) -> admission_pb2.CatalogResponse:
        """Read the fixed models and the server's features; with `include_hidden` the routes, too."""
        request = admission_pb2.CatalogRequest(include_hidden=include_hidden)
        return await self.call(self._admission.Catalog, request)

    # --- collectors ---------------------------------------------------------------------------------------------------

    async def report_capacity(
        self,
        collector_id: str,
        observations: Iterable[types_pb2.Observation] = (),
        *,
        retract: admission_pb2.Retract | None = None,
    ) -> Sequence[admission_pb2.ItemResult]:
        """Send observations without a stream; returns what became of each."""
        request = requests.report_request(collector_id, observations, retract)
        response = await self.call(self._admission.ReportCapacity, request)
        return response.results

    def capacity_feed(self, hello: admission_pb2.Hello) -> Feed:
        """Open the feed, as `async with client.capacity_feed(hello) as feed`. The stream has no deadline."""
        stub: admission_pb2_grpc.AdmissionServiceAsyncStub = self._admission
        return Feed(stub.CapacityFeed(metadata=self.connection.metadata()), hello)

    # --- operators ----------------------------------------------------------------------------------------------------

    async def get_status(self) -> operator_pb2.GetStatusResponse:
        """Read the server's own state: ready, revision, dependencies, warnings."""
        return await self.call(self._operator.GetStatus, operator_pb2.GetStatusRequest())

    async def clear_blockers(
        self,
        provider: str,
        *,
        model: str = "",
        blocker: types_pb2.Blocker.ValueType = types_pb2.BLOCKER_UNSPECIFIED,
        reason: str = "",
    ) -> int:
        """Clear blockers of a provider (of one model, of one kind); returns how many there were."""
        request = operator_pb2.ClearBlockersRequest(provider=provider, model=model, blocker=blocker, reason=reason)
        return (await self.call(self._operator.ClearBlockers, request)).cleared

    async def list_pins(
        self, *, model: str = "", provider: str = "", pin_id: str = ""
    ) -> AsyncIterator[types_pb2.PinRecord]:
        """Walk the stored pins, page by page as they are asked for."""
        token = ""
        while True:
            request = operator_pb2.ListPinsRequest(
                page_size=requests.PIN_PAGE, page_token=token, model=model, provider=provider, pin_id=pin_id
            )
            response = await self.call(self._operator.ListPins, request)
            for pin in response.pins:
                yield pin
            token = response.next_page_token
            if not token:
                return

    async def retire_pins(
        self, *, pin_id: str = "", provider: str = "", model: str = "", reason: str = "", dry_run: bool = False
    ) -> int:
        """Retire one pin, or all of a provider or a route; returns how many. With `dry_run` only counts."""
        request = requests.retire_request(pin_id, provider, model, reason, dry_run)
        return (await self.call(self._operator.RetirePins, request)).retired

    async def verify_pins(self) -> operator_pb2.VerifyPinsResponse:
        """Check every pin's checksum."""
        return await self.call(self._operator.VerifyPins, operator_pb2.VerifyPinsRequest())

    # --- health -------------------------------------------------------------------------------------------------------

    async def serving(self, service: str = "") -> bool:
        """Tell whether the server says SERVING; False also when it cannot be reached or does not know the service."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = await self.call(self._check, request, repeatable=False)
        except TidegateError:
            return False
        return response.status == health_pb2.HealthCheckResponse.SERVING


class AsyncFlows:
    """The flow guard (§8 of the contract), message for message."""

    def __init__(self, client: AsyncClient, stub: "flow_pb2_grpc.FlowServiceAsyncStub") -> None:
        self._client = client
        self._stub = stub

    async def enter_hop(self, request: flow_pb2.EnterHopRequest) -> flow_pb2.EnterHopResponse:
        """Ask for one call into an agent, and charge it; a repeat of its `request_id` answers the same."""
        return await self._client.call(self._stub.EnterHop, request)

    async def exit_hop(self, request: flow_pb2.ExitHopRequest) -> flow_pb2.ExitHopResponse:
        """Close a hop and settle its reservation; closing it again charges nothing."""
        return await self._client.call(self._stub.ExitHop, request)

    async def record_tokens(self, request: flow_pb2.RecordTokensRequest) -> flow_pb2.RecordTokensResponse:
        """Add tokens to a hop; repeated on UNAVAILABLE only with a `request_id`, else they might count twice."""
        return await self._client.call(self._stub.RecordTokens, request, repeatable=bool(request.request_id))

    async def get(self, flow_id: str) -> flow_pb2.Flow:
        """Read one flow."""
        return (await self._client.call(self._stub.GetFlow, flow_pb2.GetFlowRequest(flow_id=flow_id))).flow

    async def list(self, request: flow_pb2.ListFlowsRequest) -> flow_pb2.ListFlowsResponse:
        """Read one page of flows."""
        return await self._client.call(self._stub.ListFlows, request)

    async def watch(self, flow_id: str = "") -> AsyncIterator[flow_pb2.WatchFlowsResponse]:
        """Follow one flow, or all: a snapshot, then changes. The stream has no deadline."""
        request = flow_pb2.WatchFlowsRequest(flow_id=flow_id)
        try:
            async for event in self._stub.WatchFlows(request, metadata=self._client.connection.metadata()):
                yield event
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None


class AsyncAgents:
    """Agent selection (§9 of the contract), message for message."""

    def __init__(self, client: AsyncClient, stub: "selection_pb2_grpc.SelectionServiceAsyncStub") -> None:
        self._client = client
        self._stub = stub

    async def register(self, request: selection_pb2.RegisterAgentRequest) -> selection_pb2.RegisterAgentResponse:
        """Add or replace an agent."""
        return await self._client.call(self._stub.RegisterAgent, request)

    async def deregister(self, request: selection_pb2.DeregisterAgentRequest) -> selection_pb2.DeregisterAgentResponse:
        """Remove an agent."""
        return await self._client.call(self._stub.DeregisterAgent, request)

    async def list(self, request: selection_pb2.ListAgentsRequest) -> selection_pb2.ListAgentsResponse:
        """Read the agents that a caller may see."""
        return await self._client.call(self._stub.ListAgents, request)

    async def append_turn(self, request: selection_pb2.AppendTurnRequest) -> selection_pb2.AppendTurnResponse:
        """Add a turn to a session; not repeated, since it would be there twice."""
        return await self._client.call(self._stub.AppendTurn, request, repeatable=False)

    async def select(self, request: selection_pb2.SelectAgentRequest) -> selection_pb2.SelectAgentResponse:
        """Choose the agent for a query."""
        return await self._client.call(self._stub.SelectAgent, request)

    async def assign_step(self, request: selection_pb2.AssignStepRequest) -> selection_pb2.AssignStepResponse:
        """Fill in the agent of a workflow step."""
        return await self._client.call(self._stub.AssignStep, request)

    async def dispatch(self, request: selection_pb2.DispatchRequest) -> selection_pb2.DispatchResponse:
        """Tell who handles a message: the orchestrator or an agent."""
        return await self._client.call(self._stub.Dispatch, request)

    async def get_stats(self, request: selection_pb2.GetStatsRequest) -> selection_pb2.GetStatsResponse:
        """Read the rollup of selections."""
        return await self._client.call(self._stub.GetStats, request)

    async def list_decisions(self, request: selection_pb2.ListDecisionsRequest) -> selection_pb2.ListDecisionsResponse:
        """Read one page of the decision log."""
        return await self._client.call(self._stub.ListDecisions, request)
