"""Which agents a caller may be given, read from the registry."""

from tidegate_server.core.model import Caller
from tidegate_server.core.selection import access
from tidegate_server.core.selection.model import Agent
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import AgentStore

_PAGE = 1_000


async def accessible_agents(agents: AgentStore, caller: Caller, on_behalf_of: str) -> tuple[Agent, ...]:
    """Every agent of the caller's namespace that `on_behalf_of` may see, in the order of ids."""
    found: list[Agent] = []
    after = ""
    while True:
        page = await agents.entries(caller.namespace, after=after, limit=_PAGE)
        found += (entry.agent for entry in page if access.may_see(entry.agent, on_behalf_of))
        if len(page) < _PAGE:
            return tuple(found)
        after = page[-1].agent.agent_id


async def named_agent(agents: AgentStore, caller: Caller, on_behalf_of: str, reference: str, field: str) -> Agent:
    """The agent that `reference` means: the id of one that may be seen, else the name of exactly one.

    NotFound when nothing that may be seen is called so; an agent that is hidden gives the same answer as none.
    InvalidRequest, on `field`, when several bear the name.
    """
    entry = await agents.get(caller.namespace, reference)
    if entry is not None and access.may_see(entry.agent, on_behalf_of):
        return entry.agent
    bearers = [found.agent for found in await agents.named(caller.namespace, reference)]
    seen = access.accessible(bearers, on_behalf_of)
    if not seen:
        raise NotFound("agent", reference)
    if len(seen) > 1:
        ids = ", ".join(agent.agent_id for agent in seen[:5])
        raise InvalidRequest([FieldViolation(field, f"{len(seen)} agents bear this name; use an id: {ids}")])
    return seen[0]
