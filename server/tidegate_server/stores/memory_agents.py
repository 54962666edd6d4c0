"""Agents, sessions and embeddings in this process's memory: for tests and trials; nothing outlives the process."""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence

from tidegate_server.core.model import WallTime
from tidegate_server.core.selection.model import Turn, Vector
from tidegate_server.ports import AgentEntry


class MemoryAgentStore:
    """The port `AgentStore` on dictionaries."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], AgentEntry] = {}
        self._turns: dict[tuple[str, str], deque[Turn]] = {}
        self._touched: dict[tuple[str, str], WallTime] = {}
        self._vectors: dict[tuple[str, bytes], Vector] = {}

    async def get(self, namespace: str, agent_id: str) -> AgentEntry | None:
        """The entry of this id."""
        return self._entries.get((namespace, agent_id))

    async def named(self, namespace: str, name: str) -> Sequence[AgentEntry]:
        """All entries of this exact name."""
        return [entry for entry in self._in(namespace) if entry.agent.name == name]

    async def entries(self, namespace: str, *, after: str, limit: int) -> Sequence[AgentEntry]:
        """A page of the entries."""
        return [entry for entry in self._in(namespace) if entry.agent.agent_id > after][:limit]

    async def put(self, namespace: str, entry: AgentEntry, *, replaces: AgentEntry | None) -> bool:
        """Store `entry` in the place of `replaces`."""
        key = (namespace, entry.agent.agent_id)
        if self._entries.get(key) != replaces:
            return False
        self._entries[key] = entry
        return True

    async def remove(self, namespace: str, entry: AgentEntry) -> bool:
        """Remove `entry`."""
        key = (namespace, entry.agent.agent_id)
        if self._entries.get(key) != entry:
            return False
        del self._entries[key]
        return True

    async def append_turn(self, namespace: str, session: str, turn: Turn, *, keep: int, when: WallTime) -> None:
        """Put `turn` at the session's end and drop what is over `keep`."""
        key = (namespace, session)
        self._turns[key] = deque((*self._turns.get(key, ()), turn), maxlen=keep)
        self._touched[key] = max(when, self._touched.get(key, when))

    async def turns(self, namespace: str, session: str, *, limit: int) -> Sequence[Turn]:
        """The session's newest turns."""
        turns = list(self._turns.get((namespace, session), ()))
        return turns[max(0, len(turns) - limit) :]

    async def forget_sessions(self, before: WallTime) -> int:
        """Drop the sessions whose newest turn is older than `before`."""
        old = [key for key, touched in self._touched.items() if touched < before]
        for key in old:
            del self._turns[key], self._touched[key]
        return len(old)

    async def vectors(self, space: str, digests: Sequence[bytes]) -> Mapping[bytes, Vector]:
        """The stored vectors of these digests."""
        return {digest: self._vectors[space, digest] for digest in digests if (space, digest) in self._vectors}

    async def put_vectors(self, space: str, vectors: Mapping[bytes, Vector]) -> None:
        """Store vectors."""
        self._vectors.update({(space, digest): array("f", vector) for digest, vector in vectors.items()})

    def healthy(self) -> bool:
        """Memory does not fail."""
        return True

    async def close(self) -> None:
        """Nothing to let go of."""

    def _in(self, namespace: str) -> list[AgentEntry]:
        of_namespace = (entry for (where, _), entry in self._entries.items() if where == namespace)
        return sorted(of_namespace, key=lambda entry: entry.agent.agent_id.encode())
