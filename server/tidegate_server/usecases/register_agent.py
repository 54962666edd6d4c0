"""RegisterAgent: put an agent into the registry, or a new version in the place of its own."""

from collections.abc import Callable

from tidegate_server.core.model import Caller
from tidegate_server.core.selection import access
from tidegate_server.core.selection.model import Agent
from tidegate_server.errors import AgentNotOwned, FieldViolation, InvalidRequest
from tidegate_server.ports import AgentEntry, AgentStore


class RegisterAgent:
    """An agent without an owner belongs to the identity that registers it; one without an id is given one."""

    def __init__(self, agents: AgentStore, new_id: Callable[[], str]) -> None:
        self._agents = agents
        self._new_id = new_id

    async def __call__(self, agent: Agent, caller: Caller) -> Agent:
        """The agent as stored. Raises InvalidRequest, AgentNotOwned, StoreUnavailable."""
        agent = agent._replace(agent_id=agent.agent_id or self._new_id())
        faults = [FieldViolation(f"agent.{field}", fault) for field, fault in access.faults(agent)]
        if faults:
            raise InvalidRequest(faults)
        entry = AgentEntry(agent._replace(owner=agent.owner or caller.name), caller.name)
        while True:  # ends: who loses a race sees the winner's entry, and is then allowed to replace it or is not
            stored = await self._agents.get(caller.namespace, agent.agent_id)
            if stored is not None and not access.may_replace(
                stored.agent, stored.registrar, entry.agent.owner, caller.name
            ):
                raise AgentNotOwned(agent.agent_id)
            if stored == entry or await self._agents.put(caller.namespace, entry, replaces=stored):
                return entry.agent
