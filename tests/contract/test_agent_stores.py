"""Every store of agents passes the one suite; what only the durable ones promise stands below."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_server.core.selection.model import Turn
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import AgentStore
from tidegate_server.stores.memory_agents import MemoryAgentStore
from tidegate_server.stores.postgres.agents import PostgresAgentStore
from tidegate_server.stores.sqlite_agents import SqliteAgentStore

from tests.contract.agent_store_contract import BILLING, AgentStoreContract
from tests.support.shared_stores import shared_database


class TestMemory(AgentStoreContract):
    @pytest.fixture
    def store(self) -> AgentStore:
        return MemoryAgentStore()


class TestSqlite(AgentStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[AgentStore]:
        store = SqliteAgentStore.open(tmp_path / "state")
        yield store
        await store.close()

    async def test_all_of_it_outlives_a_restart(self, tmp_path: Path) -> None:
        first = SqliteAgentStore.open(tmp_path / "state")
        await first.put("default", BILLING, replaces=None)
        await first.append_turn("default", "s", Turn("user", "hello"), keep=5, when=1)
        await first.put_vectors("model", {b"d": [0.5]})
        await first.close()
        second = SqliteAgentStore.open(tmp_path / "state")
        assert await second.get("default", "billing") == BILLING
        assert list(await second.turns("default", "s", limit=5)) == [Turn("user", "hello")]
        assert list((await second.vectors("model", [b"d"]))[b"d"]) == [0.5]
        await second.close()

    async def test_files_are_for_the_owner_alone_and_for_one_process(self, tmp_path: Path) -> None:
        store = SqliteAgentStore.open(tmp_path / "state")
        await store.put("default", BILLING, replaces=None)
        files = list((tmp_path / "state/agents").iterdir())
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        with pytest.raises(UnsafeState, match="in use"):
            SqliteAgentStore.open(tmp_path / "state")
        await store.close()

    async def test_a_foreign_or_newer_file_is_refused(self, tmp_path: Path) -> None:
        store = SqliteAgentStore.open(tmp_path / "state")
        await store.close()
        path = tmp_path / "state/agents/agents.db"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(UnsafeState, match="newer version"):
            SqliteAgentStore.open(tmp_path / "state")
        path.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
        with pytest.raises(UnsafeState, match="no database"):
            SqliteAgentStore.open(tmp_path / "state")

    async def test_a_failing_disk_is_the_store_s_one_error(self, tmp_path: Path) -> None:
        store = SqliteAgentStore.open(tmp_path / "state")
        with sqlite3.connect(tmp_path / "state/agents/agents.db") as other:
            other.execute("DROP TABLE agents")
        other.close()
        with pytest.raises(StoreUnavailable) as raised:
            await store.get("default", "billing")
        assert str(raised.value) == "the store of agents is unavailable"
        assert not store.healthy()
        await store.append_turn("default", "s", Turn("user", "x"), keep=1, when=1)
        assert store.healthy()
        await store.close()


class TestPostgres(AgentStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[AgentStore]:
        async with shared_database() as database:
            yield PostgresAgentStore(database)
