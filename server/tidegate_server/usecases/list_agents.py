"""ListAgents: the agents that a caller may be given, page by page."""

from typing import NamedTuple

from tidegate_server.core.model import Caller
from tidegate_server.core.selection import access
from tidegate_server.core.selection.model import Agent
from tidegate_server.ports import AgentStore


class AgentPage(NamedTuple):
    """Agents in the order of their ids; `next_after` is where the next page starts, "" at the end."""

    agents: tuple[Agent, ...]
    next_after: str


class ListAgents:
    """An operator or viewer who names no caller sees the whole registry of the namespace."""

    def __init__(self, agents: AgentStore) -> None:
        self._agents = agents

    async def __call__(self, on_behalf_of: str, caller: Caller, *, after: str, limit: int) -> AgentPage:
        """Raises StoreUnavailable."""
        everything = not on_behalf_of and bool(caller.roles & {"operator", "viewer"})
        found: list[Agent] = []
        while len(found) <= limit:
            page = await self._agents.entries(caller.namespace, after=after, limit=limit + 1)
            found += (entry.agent for entry in page if everything or access.may_see(entry.agent, on_behalf_of))
            if len(page) <= limit:
                break
            after = page[-1].agent.agent_id
        agents = tuple(found[:limit])
        return AgentPage(agents, agents[-1].agent_id if len(found) > limit else "")
