"""An entry of the registry as JSON text, the same in every durable store."""

import json

from tidegate_server.core.selection.model import Agent
from tidegate_server.ports import AgentEntry


def agent_document(entry: AgentEntry) -> str:
    """The whole entry."""
    return json.dumps({"registrar": entry.registrar, "agent": entry.agent._asdict()}, ensure_ascii=False)


def read_agent_document(document: str) -> AgentEntry:
    """The entry that `agent_document` wrote."""
    data = json.loads(document)
    agent = data["agent"]
    lists = {field: tuple(agent[field]) for field in ("skills", "tags", "visible_to")}
    return AgentEntry(Agent(**{**agent, **lists}), data["registrar"])
