"""The embedded store held up for real: another process has its file locked, or its disk is full."""

import asyncio
import sqlite3
from pathlib import Path

from tidegate_server.core.flow.model import FlowKey
from tidegate_server.core.model import SECOND
from tidegate_server.stores.sqlite_flows import SqliteFlowStore
from tidegate_server.testing import FakeClock
from tidegate_server.usecases.flow_status import tend

from tests.integration.flow.serving import ADMITTED, TRACE, Served, code, serving


async def heal(served: Served) -> None:
    """Let the server tend its store, as it does all the time, until it is well."""
    tending = asyncio.ensure_future(tend(served.store, served.clock))
    async with asyncio.timeout(10):
        while not served.store.healthy():
            await served.clock.advance(SECOND)
            await asyncio.sleep(0.01)
    tending.cancel()


async def test_a_locked_file_refuses_in_time_and_leaves_no_hop(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await SqliteFlowStore.open(tmp_path / "state", clock)
    async with serving(lambda _: store) as served:
        a = await served.grant("", "A")
        other = sqlite3.connect(tmp_path / "state/flows/flows.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for callers in (1, 100, 20):
            calls = [asyncio.ensure_future(served.enter("A", "B", a)) for _ in range(callers)]
            async with asyncio.timeout(30):
                while not all(call.done() for call in calls):
                    await served.clock.advance(SECOND // 100)
                    await asyncio.sleep(0.001)
            assert {code(call.result()) for call in calls} == {"flow_guard_unavailable"}
        assert not served.store.healthy()
        other.execute("ROLLBACK")
        other.close()
        await heal(served)
        async with asyncio.timeout(5):  # what was late may be granted now, and is given back
            while len((await served.flow()).hops) > 1:
                await asyncio.sleep(0.001)
        assert (await served.enter("A", "B", a)).verdict == ADMITTED


async def test_a_full_disk_refuses_and_heals(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await SqliteFlowStore.open(tmp_path / "state", clock)
    async with serving(lambda _: store) as served:
        a = await served.grant("", "A")
        (pages,) = await store._database.do(lambda db: db.execute("PRAGMA page_count").fetchone())
        await store._database.do(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        refused = 0
        for number in range(2_000):
            answer = await served.enter("", f"A{number}", traceparent=f"00-{number + 1:032x}-00f067aa0ba902b7-01")
            if answer.verdict != ADMITTED:
                assert code(answer) == "flow_guard_unavailable"
                refused += 1
                break
        assert refused == 1
        found = await store.get(FlowKey("default", TRACE))
        assert found is not None
        assert list(found[0].hops) == [a.hop_id]
        await store._database.do(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())
        await heal(served)
        assert (await served.enter("A", "B", a)).verdict == ADMITTED
