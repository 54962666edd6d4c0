"""Dispatch: who takes a chat message. It looks a name up, and never runs the pipeline (§9 of the contract)."""

from typing import NamedTuple

from tidegate_server.core.model import Caller
from tidegate_server.core.selection.model import ORCHESTRATOR, Agent, DispatchTarget
from tidegate_server.ports import AgentStore
from tidegate_server.usecases.fleet import named_agent


class Dispatched(NamedTuple):
    """The target; `agent` None: the caller's own loop."""

    target: DispatchTarget
    agent: Agent | None = None


class Dispatch:
    """No agent, or `orchestrator`: the caller's own ReAct loop. Anything else: that agent, by id or name."""

    def __init__(self, agents: AgentStore) -> None:
        self._agents = agents

    async def __call__(self, reference: str, on_behalf_of: str, caller: Caller) -> Dispatched:
        """Raises NotFound, InvalidRequest for a name that several agents bear, StoreUnavailable."""
        if reference in ("", ORCHESTRATOR):
            return Dispatched(DispatchTarget.ORCHESTRATOR)
        agent = await named_agent(self._agents, caller, on_behalf_of, reference, "agent_id")
        return Dispatched(DispatchTarget.AGENT, agent)
