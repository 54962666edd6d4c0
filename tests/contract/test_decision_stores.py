"""Every store of decisions passes the one suite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_server.ports import DecisionFilter, DecisionStore
from tidegate_server.stores.memory_decisions import MemoryDecisionStore
from tidegate_server.stores.postgres.decisions import PostgresDecisionStore
from tidegate_server.stores.sqlite_decisions import SqliteDecisionStore

from tests.contract.decision_log_contract import DAY, DecisionStoreContract, record
from tests.support.shared_stores import shared_database


class TestMemory(DecisionStoreContract):
    @pytest.fixture
    def store(self) -> DecisionStore:
        return MemoryDecisionStore()


class TestSqlite(DecisionStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[DecisionStore]:
        store = SqliteDecisionStore.open(tmp_path / "state")
        yield store
        await store.close()

    async def test_decisions_and_sums_outlive_a_restart(self, tmp_path: Path) -> None:
        first = SqliteDecisionStore.open(tmp_path / "state")
        await first.write([record(1), record(2)])
        totals = list(await first.totals("default"))
        await first.close()
        second = SqliteDecisionStore.open(tmp_path / "state")
        page = await second.list(DecisionFilter("default"), before=0, limit=1)
        assert page.records == (record(2),)
        assert list(await second.totals("default")) == totals
        await second.close()

    async def test_a_large_purge_goes_in_chunks(self, tmp_path: Path) -> None:
        store = SqliteDecisionStore.open(tmp_path / "state")
        await store.write([record(i, decide_time=i) for i in range(12_000)])
        assert await store.purge(DAY) == 12_000
        await store.close()


class TestPostgres(DecisionStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[DecisionStore]:
        async with shared_database() as database:
            yield PostgresDecisionStore(database)

    async def test_a_large_purge_goes_in_chunks(self, store: DecisionStore) -> None:
        await store.write([record(i, decide_time=i) for i in range(12_000)])
        assert await store.purge(DAY) == 12_000

    async def test_a_character_that_postgresql_lacks_does_not_lose_the_record(self, store: DecisionStore) -> None:
        await store.write([record(1, subject="a\0b")])
        assert (await store.list(DecisionFilter("default"), before=0, limit=1)).records[0].subject == "a\ufffdb"
