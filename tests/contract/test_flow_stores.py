"""Every store of flows passes the one suite; what only the durable ones promise stands below."""

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from tidegate_server.core.flow.model import Entered, Signed
from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import FlowStore
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.memory_flows import MemoryFlowStore
from tidegate_server.stores.sqlite_flows import SqliteFlowStore

from tests.contract.flow_store_contract import (
    FLOW,
    LIMITS,
    FlowStoreContract,
    ManualClock,
    R,
    ask,
    enter,
    flow_of,
    reason,
)
from tests.support.servers import needs_redis
from tests.support.shared_stores import RedisFlowBackend, ValkeyFlowBackend


class MemoryBackend:
    durable: ClassVar[bool] = False

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()

    async def open(self) -> FlowStore:
        return MemoryFlowStore(self.clock)

    async def advance(self, length: Nanos) -> None:
        self.clock.advance(length)


class SqliteBackend(MemoryBackend):
    durable: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.state = directory / "state"

    async def open(self) -> FlowStore:
        return await SqliteFlowStore.open(self.state, self.clock)


class GuardedBackend(MemoryBackend):
    async def open(self) -> FlowStore:
        return GuardedFlowStore(MemoryFlowStore(self.clock), self.clock)


class TestMemory(FlowStoreContract):
    backend = MemoryBackend


class TestSqlite(FlowStoreContract):
    backend = SqliteBackend

    async def test_files_are_for_the_owner_alone_and_for_one_process(self, tmp_path: Path) -> None:
        store = await SqliteFlowStore.open(tmp_path / "state", ManualClock())
        await enter(store, "", "A")
        assert {file.stat().st_mode & 0o777 for file in (tmp_path / "state/flows").iterdir()} == {0o600}
        with pytest.raises(UnsafeState, match="in use"):
            await SqliteFlowStore.open(tmp_path / "state", ManualClock())
        await store.close()

    async def test_a_failed_transaction_leaves_the_state_as_the_file_has_it(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = await SqliteFlowStore.open(tmp_path / "state", clock)
        a = await enter(store, "", "A")
        file = tmp_path / "state/flows/flows.db"
        with sqlite3.connect(file) as other:
            other.execute("ALTER TABLE hops RENAME TO hidden")
        told: list[object] = []
        store.subscribe(told.append)
        answers = await asyncio.gather(*(store.enter(ask("A", "B")) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        assert not store.healthy()
        with sqlite3.connect(file) as other:
            other.execute("ALTER TABLE hidden RENAME TO hops")
        other.close()
        await store.sweep(1)
        assert store.healthy()
        assert list((await flow_of(store)).hops.values()) == [a]
        assert told == []
        assert isinstance(await store.enter(ask("A", "B")), Entered)
        await store.close()

    async def test_a_commit_that_fails_takes_its_whole_batch_back(self, tmp_path: Path) -> None:
        store = await SqliteFlowStore.open(tmp_path / "state", ManualClock())
        await enter(store, "", "A")
        reader = sqlite3.connect(tmp_path / "state/flows/flows.db", isolation_level=None)
        reader.execute("CREATE TABLE guard (id INTEGER PRIMARY KEY)")
        reader.execute("CREATE TABLE child (id INTEGER REFERENCES guard (id) DEFERRABLE INITIALLY DEFERRED)")
        # The violation shows at COMMIT alone, after every job of the batch has been done.
        reader.execute("CREATE TRIGGER spoil AFTER INSERT ON hops BEGIN INSERT INTO child VALUES (1); END")
        await store._database.do(lambda connection: connection.execute("SELECT 1").fetchone())
        store._database._connection.execute("PRAGMA foreign_keys = ON")
        answers = await asyncio.gather(*(store.enter(ask("A", "B")) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        reader.execute("DROP TRIGGER spoil")
        reader.close()
        assert len((await flow_of(store)).hops) == 1
        await store.close()

    async def test_a_step_of_the_wall_clock_changes_nothing(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = await SqliteFlowStore.open(tmp_path / "state", clock)
        a = await enter(store, "", "A")
        proof = Signed(a.hop_id, (await flow_of(store)).start, LIMITS.timeout)
        for step in (86_400 * SECOND, -3 * 86_400 * SECOND):
            clock.step(step)
            assert isinstance(await store.enter(ask("A", "B", proof=proof)), Entered)
        clock.advance(120 * SECOND + 1)
        assert reason(await store.enter(ask("A", "B", proof=proof))) is R.FLOW_TIMEOUT
        await store.close()

    async def test_a_step_back_while_down_gives_no_flow_more_than_the_step(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = await SqliteFlowStore.open(tmp_path / "state", clock)
        a = await enter(store, "", "A")
        proof = Signed(a.hop_id, (await flow_of(store)).start, LIMITS.timeout)
        clock.advance(100 * SECOND)
        await store.sweep(1)
        await store.close()
        clock.step(-50 * SECOND)
        store = await SqliteFlowStore.open(tmp_path / "state", clock)
        clock.advance(20 * SECOND)
        assert isinstance(await store.enter(ask("A", "B", proof=proof)), Entered)
        clock.advance(1)
        assert reason(await store.enter(ask("A", "B", proof=proof))) is R.FLOW_TIMEOUT
        await store.close()

    async def test_what_is_over_at_the_start_is_not_read(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = await SqliteFlowStore.open(tmp_path / "state", clock)
        a = await enter(store, "", "A")
        await store.record(FLOW, a.hop_id, 1, "t")
        await store.close()
        clock.advance(1_000 * SECOND)
        store = await SqliteFlowStore.open(tmp_path / "state", clock)
        await store.close()
        with sqlite3.connect(tmp_path / "state/flows/flows.db") as file:
            for table in ("flows", "hops", "records"):
                assert file.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,)
        file.close()

    async def test_granted_hops_survive_kill_9(self, tmp_path: Path) -> None:
        """A child enters hops and tells each one granted; it is killed in the middle of that."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, str(tmp_path / "state"), stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        granted: list[str] = []
        while len(granted) < 200:
            line = await child.stdout.readline()
            assert line, "the child ended by itself"
            granted.append(line.decode().strip())
        os.kill(child.pid, signal.SIGKILL)
        granted += [line.decode().strip() async for line in child.stdout if line.endswith(b"\n")]
        await child.wait()
        store = await SqliteFlowStore.open(tmp_path / "state", ManualClock())
        flow = await flow_of(store)
        assert set(granted) <= set(flow.hops)
        assert flow.tokens == len(flow.hops)
        await store.close()


class TestGuarded(FlowStoreContract):
    backend = GuardedBackend


@needs_redis
class TestRedis(FlowStoreContract):
    backend = RedisFlowBackend


class TestValkey(FlowStoreContract):
    backend = ValkeyFlowBackend


_CHILD = """
import asyncio, sys
from pathlib import Path
from tests.contract.flow_store_contract import LIMITS, ManualClock, ask
from tidegate_server.stores.sqlite_flows import SqliteFlowStore

async def one(store, limits):
    while True:
        entered = await store.enter(ask("", "A", limits=limits, reserve=1))
        print(entered.hop.hop_id, flush=True)

async def main():
    store = await SqliteFlowStore.open(Path(sys.argv[1]), ManualClock())
    limits = LIMITS._replace(max_fan_out=1_000_000, max_tokens=1_000_000)
    await asyncio.gather(*(one(store, limits) for _ in range(8)))

asyncio.run(main())
"""
