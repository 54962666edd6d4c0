"""Agents, sessions and embeddings in SQLite: the embedded mode's store."""

import sqlite3
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tidegate_server.core.model import WallTime
from tidegate_server.core.selection.model import Turn, Vector
from tidegate_server.ports import AgentEntry
from tidegate_server.stores.agent_documents import agent_document, read_agent_document
from tidegate_server.stores.sqlite_database import SqliteDatabase

_LOOKUP_CHUNK = 500
"""Below the number of parameters that every build of SQLite takes in one statement."""


class SqliteAgentStore:
    """The port `AgentStore` on one file, `agents/agents.db` in the state directory."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    @classmethod
    def open(cls, state: Path) -> Self:
        """Open the store in the state directory, or make it. UnsafeState when what lies there must not be used."""
        return cls(SqliteDatabase.open(state, "agents", synchronous="FULL"))

    async def get(self, namespace: str, agent_id: str) -> AgentEntry | None:
        """The entry of this id."""
        return await self._database.do(lambda connection: _get(connection, namespace, agent_id))

    async def named(self, namespace: str, name: str) -> Sequence[AgentEntry]:
        """All entries of this exact name."""
        sql = "SELECT document FROM agents WHERE namespace = ? AND name = ? ORDER BY agent_id"
        rows = await self._database.do(lambda connection: connection.execute(sql, (namespace, name)).fetchall())
        return [read_agent_document(document) for (document,) in rows]

    async def entries(self, namespace: str, *, after: str, limit: int) -> Sequence[AgentEntry]:
        """A page of the entries."""
        sql = "SELECT document FROM agents WHERE namespace = ? AND agent_id > ? ORDER BY agent_id LIMIT ?"
        rows = await self._database.do(lambda connection: connection.execute(sql, (namespace, after, limit)).fetchall())
        return [read_agent_document(document) for (document,) in rows]

    async def put(self, namespace: str, entry: AgentEntry, *, replaces: AgentEntry | None) -> bool:
        """Store `entry` in the place of `replaces`."""

        def job(connection: sqlite3.Connection) -> bool:
            agent = entry.agent
            if _get(connection, namespace, agent.agent_id) != replaces:
                return False
            row = (namespace, agent.agent_id, agent.name, agent_document(entry))
            connection.execute("INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?)", row)
            return True

        return await self._database.do(job)

    async def remove(self, namespace: str, entry: AgentEntry) -> bool:
        """Remove `entry`."""

        def job(connection: sqlite3.Connection) -> bool:
            key = (namespace, entry.agent.agent_id)
            if _get(connection, *key) != entry:
                return False
            connection.execute("DELETE FROM agents WHERE namespace = ? AND agent_id = ?", key)
            return True

        return await self._database.do(job)

    async def append_turn(self, namespace: str, session: str, turn: Turn, *, keep: int, when: WallTime) -> None:
        """Put `turn` at the session's end and drop what is over `keep`."""

        def job(connection: sqlite3.Connection) -> None:
            key = (namespace, session)
            newest = connection.execute(
                "SELECT COALESCE(MAX(position), 0) FROM turns WHERE namespace = ? AND session = ?", key
            ).fetchone()[0]
            connection.execute("INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?)", (*key, newest + 1, when, *turn))
            connection.execute(
                "DELETE FROM turns WHERE namespace = ? AND session = ? AND position <= ?", (*key, newest + 1 - keep)
            )

        await self._database.do(job)

    async def turns(self, namespace: str, session: str, *, limit: int) -> Sequence[Turn]:
        """The session's newest turns."""
        sql = (
            "SELECT role, content, agent_id FROM turns WHERE namespace = ? AND session = ?"
            " ORDER BY position DESC LIMIT ?"
        )
        rows = await self._database.do(
            lambda connection: connection.execute(sql, (namespace, session, limit)).fetchall()
        )
        return [Turn(*row) for row in reversed(rows)]

    async def forget_sessions(self, before: WallTime) -> int:
        """Drop the sessions whose newest turn is older than `before`."""

        def job(connection: sqlite3.Connection) -> int:
            sessions = connection.execute(
                "SELECT namespace, session FROM turns GROUP BY namespace, session HAVING MAX(at) < ?", (before,)
            ).fetchall()
            connection.executemany("DELETE FROM turns WHERE namespace = ? AND session = ?", sessions)
            return len(sessions)

        return await self._database.do(job)

    async def vectors(self, space: str, digests: Sequence[bytes]) -> Mapping[bytes, Vector]:
        """The stored vectors of these digests."""

        def job(connection: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
            found: list[tuple[bytes, bytes]] = []
            for start in range(0, len(digests), _LOOKUP_CHUNK):
                chunk = digests[start : start + _LOOKUP_CHUNK]
                places = ", ".join("?" * len(chunk))
                sql = f"SELECT digest, vector FROM vectors WHERE space = ? AND digest IN ({places})"  # noqa: S608 - "?"s
                found += connection.execute(sql, (space, *chunk))
            return found

        return {digest: array("f", vector) for digest, vector in await self._database.do(job)}

    async def put_vectors(self, space: str, vectors: Mapping[bytes, Vector]) -> None:
        """Store vectors."""
        rows = [(space, digest, array("f", vector).tobytes()) for digest, vector in vectors.items()]
        await self._database.do(
            lambda connection: connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
        )

    def healthy(self) -> bool:
        """Whether the last operation worked."""
        return self._database.healthy()

    async def close(self) -> None:
        """Finish what is accepted, then let go of the file."""
        await self._database.close()


def _get(connection: sqlite3.Connection, namespace: str, agent_id: str) -> AgentEntry | None:
    sql = "SELECT document FROM agents WHERE namespace = ? AND agent_id = ?"
    row = connection.execute(sql, (namespace, agent_id)).fetchone()
    return None if row is None else read_agent_document(row[0])
