"""DeregisterAgent: take an agent out of the registry."""

from tidegate_server.core.model import Caller
from tidegate_server.core.selection import access
from tidegate_server.errors import AgentNotOwned, FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import AgentStore


class DeregisterAgent:
    """Who registered an agent, its owner and an operator may remove it."""

    def __init__(self, agents: AgentStore) -> None:
        self._agents = agents

    async def __call__(self, agent_id: str, caller: Caller) -> None:
        """Raises InvalidRequest, NotFound, AgentNotOwned, StoreUnavailable."""
        if not agent_id:
            raise InvalidRequest([FieldViolation("agent_id", "is missing")])
        operator = "operator" in caller.roles
        while True:  # ends: a race is lost only to a change, which is then seen
            stored = await self._agents.get(caller.namespace, agent_id)
            if stored is None:
                raise NotFound("agent", agent_id)
            if not access.may_remove(stored.agent, stored.registrar, caller.name, operator=operator):
                raise AgentNotOwned(agent_id)
            if await self._agents.remove(caller.namespace, stored):
                return
