"""SelectionService: map, call, map back."""

from typing import NamedTuple

import grpc
from tidegate.v1 import selection_pb2 as wire
from tidegate.v1 import selection_pb2_grpc as rpc

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import FieldViolation, InvalidRequest
from tidegate_server.ports import Clock, Deadline
from tidegate_server.rpc import selection_mapping as mapping
from tidegate_server.rpc.admission import ANSWER_MARGIN
from tidegate_server.rpc.guard import Context, current_caller
from tidegate_server.usecases.append_turn import AppendTurn
from tidegate_server.usecases.assign_step import AssignStep
from tidegate_server.usecases.deregister_agent import DeregisterAgent
from tidegate_server.usecases.dispatch import Dispatch
from tidegate_server.usecases.list_agents import ListAgents
from tidegate_server.usecases.list_decisions import DecisionsAsk, ListDecisions
from tidegate_server.usecases.pins_operator import hex_bytes, page_limit
from tidegate_server.usecases.register_agent import RegisterAgent
from tidegate_server.usecases.select_agent import Selects
from tidegate_server.usecases.stats import GetStats


class SelectionVerbs(NamedTuple):
    """The use cases behind the methods."""

    register: RegisterAgent
    deregister: DeregisterAgent
    list_agents: ListAgents
    append_turn: AppendTurn
    select: Selects
    assign_step: AssignStep
    dispatch: Dispatch
    stats: GetStats
    list_decisions: ListDecisions


class SelectionServicer(rpc.SelectionServiceServicer):
    """One method a verb."""

    def __init__(self, verbs: SelectionVerbs, clock: Clock, default_deadline: Nanos) -> None:
        self._verbs = verbs
        self._clock = clock
        self._default_deadline = default_deadline

    def use(self, verbs: SelectionVerbs) -> None:
        """Serve with other use cases from the next call on: the configuration was reloaded."""
        self._verbs = verbs

    async def RegisterAgent(self, request: wire.RegisterAgentRequest, context: Context) -> wire.RegisterAgentResponse:
        """Put an agent into the registry."""
        stored = await self._verbs.register(mapping.agent_of(request.agent), current_caller())
        return wire.RegisterAgentResponse(agent=mapping.agent_message(stored))

    async def DeregisterAgent(
        self, request: wire.DeregisterAgentRequest, context: Context
    ) -> wire.DeregisterAgentResponse:
        """Take an agent out of the registry."""
        await self._verbs.deregister(request.agent_id, current_caller())
        return wire.DeregisterAgentResponse()

    async def ListAgents(self, request: wire.ListAgentsRequest, context: Context) -> wire.ListAgentsResponse:
        """A page of the agents that a caller may be given. The token is the id after which the next page starts."""
        page = await self._verbs.list_agents(
            request.caller, current_caller(), after=_after(request.page_token), limit=page_limit(request.page_size)
        )
        return wire.ListAgentsResponse(
            agents=[mapping.agent_message(agent) for agent in page.agents],
            next_page_token=page.next_after.encode().hex(),
        )

    async def AppendTurn(self, request: wire.AppendTurnRequest, context: Context) -> wire.AppendTurnResponse:
        """Tell what was said."""
        await self._verbs.append_turn(request.session_id, mapping.turn_of(request.turn), current_caller())
        return wire.AppendTurnResponse()

    async def SelectAgent(self, request: wire.SelectAgentRequest, context: Context) -> wire.SelectAgentResponse:
        """Find an agent for a query."""
        ask = mapping.selection_ask(request)
        selection = await self._verbs.select(ask, current_caller(), self._deadline(context))
        return mapping.selection_response(selection)

    async def AssignStep(self, request: wire.AssignStepRequest, context: Context) -> wire.AssignStepResponse:
        """Fill in a workflow step's agent."""
        assignment = await self._verbs.assign_step(
            request.task_description,
            request.agent,
            request.caller,
            request.session_id,
            current_caller(),
            self._deadline(context),
        )
        return mapping.assignment_response(assignment)

    async def Dispatch(self, request: wire.DispatchRequest, context: Context) -> wire.DispatchResponse:
        """Who takes a chat message."""
        return mapping.dispatch_response(await self._verbs.dispatch(request.agent_id, request.caller, current_caller()))

    async def GetStats(self, request: wire.GetStatsRequest, context: Context) -> wire.GetStatsResponse:
        """Sums over the log, as of a moment."""
        return mapping.stats_response(await self._verbs.stats(current_caller()))

    async def ListDecisions(self, request: wire.ListDecisionsRequest, context: Context) -> wire.ListDecisionsResponse:
        """A page of decisions, the newest first. The token is the place in the log before which the next one starts."""
        ask = DecisionsAsk(request.session_id, request.model, request.kind, request.decision_id)
        page = await self._verbs.list_decisions(
            ask, current_caller(), before=_before(request.page_token), limit=page_limit(request.page_size)
        )
        return wire.ListDecisionsResponse(
            decisions=[mapping.decision_message(record) for record in page.records],
            next_page_token=page.next_before.to_bytes(8, "big").hex() if page.next_before else "",
        )

    def _deadline(self, context: Context) -> Deadline:
        """The caller's deadline or the server's own cap, less the way back."""
        remaining = context.time_remaining()
        left = self._default_deadline
        if remaining is not None:
            left = max(0, min(left, int(remaining * SECOND)))
        return Deadline(self._clock.monotonic() + left - min(left // 5, ANSWER_MARGIN))


def _after(token: str) -> str:
    try:
        return hex_bytes(token, "page_token").decode()
    except UnicodeDecodeError:
        raise InvalidRequest([FieldViolation("page_token", "is not from this server")]) from None


def _before(token: str) -> int:
    place = hex_bytes(token, "page_token")
    if len(place) not in (0, 8) or place[:1] > b"\x7f":
        raise InvalidRequest([FieldViolation("page_token", "is not from this server")])
    return int.from_bytes(place, "big")


def add_to(server: grpc.aio.Server, servicer: SelectionServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_SelectionServiceServicer_to_server(servicer, server)
    return wire.DESCRIPTOR.services_by_name["SelectionService"].full_name
