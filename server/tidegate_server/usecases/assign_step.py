"""AssignStep: the agent of a workflow step (§9 of the contract)."""

import logging
from typing import NamedTuple

from tidegate_server.core.model import Caller
from tidegate_server.core.selection.model import Agent, AssignmentSource
from tidegate_server.core.selection.record import SelectionFacts
from tidegate_server.core.selection.words import match_by_name
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import AgentStore, Deadline
from tidegate_server.usecases.deadlines import within
from tidegate_server.usecases.fleet import accessible_agents, named_agent
from tidegate_server.usecases.select_agent import NoAgents, SelectionAsk, SelectionLog, Selects

_log = logging.getLogger(__name__)


class Assignment(NamedTuple):
    """The step's agent, where it comes from, and why not from a better place. `decision_id` "": nothing was decided."""

    agent: Agent
    source: AssignmentSource
    cause: str = ""
    decision_id: str = ""


class AssignStep:
    """An agent that the step names is kept; else the pipeline picks; if that errors, names and descriptions do."""

    def __init__(self, agents: AgentStore, select: Selects, log: SelectionLog) -> None:
        self._agents = agents
        self._select = select
        self._log = log

    async def __call__(
        self, task: str, reference: str, on_behalf_of: str, session_id: str, caller: Caller, deadline: Deadline
    ) -> Assignment:
        """Raises InvalidRequest, NotFound, StoreUnavailable."""
        if reference:
            agent = await named_agent(self._agents, caller, on_behalf_of, reference, "agent")
            return Assignment(agent, AssignmentSource.GIVEN)
        if not task.strip():
            raise InvalidRequest([FieldViolation("task_description", "is missing, and the step names no agent")])
        ask = SelectionAsk(task, on_behalf_of, session_id)
        clock = self._log.clock
        left = deadline.left(clock.monotonic())
        own = Deadline(deadline.at - left // 10)  # what the pipeline may not take, lest the way out comes too late
        try:
            picked = await within(clock, left - left // 20, self._select(ask, caller, own))
        except (NotFound, InvalidRequest):
            raise
        except Exception as error:  # noqa: BLE001 - the contract: if the pipeline errors, by name and description
            _log.warning("a workflow step is assigned by name, for agent selection failed: %s", type(error).__name__)
            return await self._by_name(ask, caller)
        return Assignment(picked.agent, picked.source, picked.cause, picked.decision_id)

    async def _by_name(self, ask: SelectionAsk, caller: Caller) -> Assignment:
        agents = await accessible_agents(self._agents, caller, ask.on_behalf_of)
        if not agents:
            raise NoAgents
        agent = match_by_name(ask.query, agents)
        facts = SelectionFacts(ask.on_behalf_of, AssignmentSource.NAME_MATCH, agents, (), (), (), None, agent)
        cause = "agent selection failed; the task was matched to name and description"
        return Assignment(agent, AssignmentSource.NAME_MATCH, cause, self._log.write(facts, ask, caller))
