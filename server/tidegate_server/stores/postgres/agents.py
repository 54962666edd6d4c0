"""Agents, sessions and embeddings in PostgreSQL: the shared mode's store (§9 of the contract)."""

import json
from array import array
from collections.abc import Mapping, Sequence

from tidegate_server.core.model import WallTime
from tidegate_server.core.selection.model import Turn, Vector
from tidegate_server.ports import AgentEntry
from tidegate_server.stores.agent_documents import agent_document, read_agent_document
from tidegate_server.stores.postgres.database import WALK_SECONDS, Database, Parameters, Row
from tidegate_server.stores.sql import queries

SQL = queries("postgres/agents")
_AT_ONCE = 500
_HOLDS = "agents"


class PostgresAgentStore:
    """The port `AgentStore` on a shared database, which is closed by whoever opened it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, namespace: str, agent_id: str) -> AgentEntry | None:
        """See AgentStore."""
        document = await self._document(namespace, agent_id)
        return None if document is None else read_agent_document(document)

    async def named(self, namespace: str, name: str) -> Sequence[AgentEntry]:
        """See AgentStore."""
        rows = await self._run("named", {"namespace": namespace, "name": name})
        return [read_agent_document(document) for (document,) in rows]

    async def entries(self, namespace: str, *, after: str, limit: int) -> Sequence[AgentEntry]:
        """See AgentStore."""
        rows = await self._run("entries", {"namespace": namespace, "after": after, "limit": limit})
        return [read_agent_document(document) for (document,) in rows]

    async def put(self, namespace: str, entry: AgentEntry, *, replaces: AgentEntry | None) -> bool:
        """See AgentStore. What it replaces is compared as it is understood, and replaced as it is written."""
        agent = entry.agent
        row = {
            "namespace": namespace,
            "agent_id": agent.agent_id,
            "name": agent.name,
            "document": agent_document(entry),
        }
        if replaces is None:
            return bool(await self._run("add", row))
        before = await self._document(namespace, agent.agent_id)
        if before is None or read_agent_document(before) != replaces:
            return False
        return bool(await self._run("replace", {**row, "before": before}))

    async def remove(self, namespace: str, entry: AgentEntry) -> bool:
        """See AgentStore."""
        agent_id = entry.agent.agent_id
        before = await self._document(namespace, agent_id)
        if before is None or read_agent_document(before) != entry:
            return False
        return bool(await self._run("remove", {"namespace": namespace, "agent_id": agent_id, "before": before}))

    async def append_turn(self, namespace: str, session: str, turn: Turn, *, keep: int, when: WallTime) -> None:
        """See AgentStore."""
        turn_document = json.dumps(turn, ensure_ascii=True)
        values = {"namespace": namespace, "session": session, "document": turn_document, "keep": keep, "at": when}
        await self._run("append_turn", values)

    async def turns(self, namespace: str, session: str, *, limit: int) -> Sequence[Turn]:
        """See AgentStore."""
        rows = await self._run("turns", {"namespace": namespace, "session": session, "limit": limit})
        return [Turn(*json.loads(document)) for (document,) in reversed(rows)]

    async def forget_sessions(self, before: WallTime) -> int:
        """See AgentStore."""
        forgotten = 0
        while True:
            gone = await self._run("forget_sessions", {"before": before, "limit": _AT_ONCE}, seconds=WALK_SECONDS)
            forgotten += len(gone)
            if len(gone) < _AT_ONCE:
                return forgotten

    async def vectors(self, space: str, digests: Sequence[bytes]) -> Mapping[bytes, Vector]:
        """See AgentStore."""
        rows = await self._run("vectors", {"space": space, "digests": list(digests)}, seconds=WALK_SECONDS)
        return {digest: array("f", vector) for digest, vector in rows}

    async def put_vectors(self, space: str, vectors: Mapping[bytes, Vector]) -> None:
        """See AgentStore."""
        digests = list(vectors)
        for start in range(0, len(digests), _AT_ONCE):
            chunk = digests[start : start + _AT_ONCE]
            packed = [array("f", vectors[digest]).tobytes() for digest in chunk]
            columns = {"space": space, "digests": chunk, "vectors": packed}
            await self._run("put_vectors", columns, seconds=WALK_SECONDS)

    def healthy(self) -> bool:
        """See AgentStore."""
        return self._database.healthy(_HOLDS)

    async def close(self) -> None:
        """See AgentStore."""

    async def _document(self, namespace: str, agent_id: str) -> str | None:
        rows = await self._run("get", {"namespace": namespace, "agent_id": agent_id})
        return str(rows[0][0]) if rows else None

    async def _run(self, statement: str, parameters: Parameters, *, seconds: float | None = None) -> Sequence[Row]:
        return await self._database.run(_HOLDS, SQL[statement], parameters, seconds=seconds)
