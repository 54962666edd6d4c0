"""Who may see an agent, who may change it, and which one a name means.

The contract says that agents have an owner and who may see them (§9); these are the rules that make it exact.
"""

from collections.abc import Iterable, Iterator, Sequence

from tidegate_server.core.requests import id_fault
from tidegate_server.core.selection.model import ORCHESTRATOR, Agent

_TEXT_LIMITS = {"description": 8192, "owner": 256, "url": 2048}
_LIST_LIMIT = 256


def may_see(agent: Agent, caller: str) -> bool:
    """Whether `caller` may be given `agent`: an agent without `visible_to` is for all, else its owner and those named.

    A caller without a name is nobody's owner: it sees what all may see.
    """
    return not agent.visible_to or (caller != "" and (caller == agent.owner or caller in agent.visible_to))


def accessible(agents: Iterable[Agent], caller: str) -> tuple[Agent, ...]:
    """The agents that `caller` may be given, in the order of their ids, so that no ranking rests on chance."""
    return tuple(sorted((agent for agent in agents if may_see(agent, caller)), key=lambda agent: agent.agent_id))


def may_replace(stored: Agent, registrar: str, owner: str, identity: str) -> bool:
    """Whether `identity` may put another version in the place of `stored`.

    The owner stays the same, and the one who asks is who registered it or the owner himself. So an agent's id cannot be
    taken over; to give it to somebody else it is removed first.
    """
    return stored.owner == owner and identity in (registrar, stored.owner)


def may_remove(stored: Agent, registrar: str, identity: str, *, operator: bool) -> bool:
    """Whether `identity` may remove `stored`: who registered it, its owner, or an operator."""
    return operator or identity in (registrar, stored.owner)


def find(reference: str, agents: Sequence[Agent]) -> tuple[Agent, ...]:
    """The agents that `reference` means, of those that the caller may see: by its id, else all that bear it as a name.

    Exact comparison only. More than one is for the caller to settle: a name that several bear picks none of them.
    """
    by_id = tuple(agent for agent in agents if agent.agent_id == reference)
    return by_id or tuple(agent for agent in agents if agent.name == reference)


def faults(agent: Agent) -> Iterator[tuple[str, str]]:
    """Every fault of a registration: pairs of the field and what is wrong with it."""
    for field in ("agent_id", "name"):
        value: str = getattr(agent, field)
        if fault := id_fault(value):
            yield field, fault
        elif value == ORCHESTRATOR:
            yield field, f'"{ORCHESTRATOR}" means the caller\'s own loop, and names no agent'
    for field, limit in _TEXT_LIMITS.items():
        if len(getattr(agent, field).encode()) > limit:
            yield field, f"is over {limit} bytes"
    for field in ("skills", "tags", "visible_to"):
        values: tuple[str, ...] = getattr(agent, field)
        if len(values) > _LIST_LIMIT:
            yield field, f"has more than {_LIST_LIMIT} items"
        for position, value in enumerate(values):
            if fault := id_fault(value):
                yield f"{field}[{position}]", fault
