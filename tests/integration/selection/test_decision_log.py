"""The decision log: off the response path, bounded, counted, written within a second, flushed at the end (§10)."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
from tidegate.v1 import selection_pb2 as wire
from tidegate_server.core.decision_record import DecisionRecord, Tally
from tidegate_server.core.model import SECOND, Caller
from tidegate_server.core.selection.record import repick
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import DecisionFilter, DecisionPage
from tidegate_server.stores.memory_agents import MemoryAgentStore
from tidegate_server.stores.memory_decisions import MemoryDecisionStore
from tidegate_server.stores.sqlite_decisions import SqliteDecisionStore
from tidegate_server.testing import FakeClock
from tidegate_server.usecases.decision_log import QueuedDecisionLog
from tidegate_server.usecases.retention import PURGE_EVERY, Retention
from tidegate_server.usecases.stats import ROLLUP_EVERY, GetStats
from tidegate_server.wiring.clock import SystemClock

from tests.integration.selection.openai_standin import StandIn
from tests.integration.selection.serving import fleet, serving

ALL = DecisionFilter("default")
DAY = 24 * 3600 * SECOND


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    async with StandIn() as standin:
        yield standin


def record(number: int) -> DecisionRecord:
    return DecisionRecord(f"id-{number}", number, "admission", "managed/routine", "ADMITTED")


class FaultyStore(MemoryDecisionStore):
    """A store that hangs or refuses while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.works = asyncio.Event()
        self.tried = asyncio.Event()
        self.refuse = False

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        self.tried.set()
        if self.refuse:
            raise StoreUnavailable("decisions")
        await self.works.wait()
        await super().write(records)

    async def list(self, which: DecisionFilter, *, before: int, limit: int) -> DecisionPage:
        if self.refuse:
            raise StoreUnavailable("decisions")
        return await super().list(which, before=before, limit=limit)


async def until_written(log: QueuedDecisionLog) -> None:
    async with asyncio.timeout(5):
        while log.waiting:
            await asyncio.sleep(0.005)


async def test_what_is_decided_is_in_the_log_within_a_second(tmp_path: Path) -> None:
    store = SqliteDecisionStore.open(tmp_path / "s")
    clock = FakeClock()
    log = QueuedDecisionLog(store, clock, queue=1000)
    log.start()
    for i in range(500):
        assert log.append(record(i))
    await clock.advance(SECOND)
    await until_written(log)
    assert len((await store.list(ALL, before=0, limit=1000)).records) == 500
    assert (log.written, log.dropped) == (500, 0)
    await log.close()
    await store.close()


async def test_a_hung_store_costs_decisions_and_never_time() -> None:
    store = FaultyStore()
    log = QueuedDecisionLog(store, SystemClock(), queue=100)
    log.start()
    for i in range(5_000):
        log.append(record(i))  # no await: it cannot wait for the store
        if i == 50:
            await store.tried.wait()
    assert log.dropped == 4_900
    assert log.waiting == 100
    store.works.set()
    await until_written(log)
    kept = (await store.list(ALL, before=0, limit=1000)).records
    assert [entry.decision_id for entry in kept] == [f"id-{i}" for i in reversed(range(100))]
    await log.close()


async def test_a_store_that_refuses_is_asked_again_and_nothing_is_lost_or_doubled() -> None:
    store = FaultyStore()
    store.works.set()
    store.refuse = True
    log = QueuedDecisionLog(store, SystemClock(), queue=100)
    log.start()
    for i in range(10):
        log.append(record(i))
    await store.tried.wait()
    store.refuse = False
    await until_written(log)
    assert len((await store.list(ALL, before=0, limit=100)).records) == 10
    assert log.dropped == 0
    await log.close()


async def test_closing_writes_what_is_queued_and_takes_nothing_more() -> None:
    store = FaultyStore()
    store.works.set()
    log = QueuedDecisionLog(store, SystemClock(), queue=5000)
    log.start()
    for i in range(2500):
        log.append(record(i))
    await log.close()
    assert len((await store.list(ALL, before=0, limit=5000)).records) == 2500
    assert not log.append(record(9999))
    assert log.dropped == 1


async def test_closing_does_not_wait_for_a_hung_store_for_ever() -> None:
    log = QueuedDecisionLog(FaultyStore(), SystemClock(), queue=100)
    log.start()
    log.append(record(1))
    await log.close(SECOND // 50)
    assert log.dropped == 1


async def test_a_record_that_cannot_be_made_is_one_record() -> None:
    store = FaultyStore()
    store.works.set()
    log = QueuedDecisionLog(store, SystemClock(), queue=100)

    def fails() -> DecisionRecord:
        raise ValueError("faulty")

    log.append(record(1))
    log.append(fails)
    log.append(lambda: record(2))
    await log.close()
    assert {entry.decision_id for entry in (await store.list(ALL, before=0, limit=9)).records} == {"id-1", "id-2"}
    assert log.dropped == 1


async def test_with_the_log_hung_a_selection_waits_for_nothing_and_the_drop_counter_moves(
    tmp_path: Path, standin: StandIn
) -> None:
    async with serving(tmp_path / "s", standin, decisions=FaultyStore(), queue=5) as served:
        await served.register(*fleet(3))
        for _ in range(40):
            answer = await served.stub.SelectAgent(wire.SelectAgentRequest(query="subject1"), timeout=30)
            assert not answer.fallback_used
        assert served.log.written == 0
        assert served.log.dropped == 35


async def test_a_log_that_cannot_be_read_is_unavailable_and_selections_go_on(tmp_path: Path, standin: StandIn) -> None:
    store = FaultyStore()
    store.refuse = True
    async with serving(tmp_path / "s", standin, decisions=store) as served:
        await served.register(*fleet(3))
        assert (await served.stub.SelectAgent(wire.SelectAgentRequest(query="x"))).decision_id
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.ListDecisions(wire.ListDecisionsRequest())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_logged_selection_is_computed_again_and_holds_no_word_of_the_query(
    tmp_path: Path, standin: StandIn
) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(20))
        history = [wire.Turn(role="user", content="a confidential word")]
        for i in range(6):
            ask = wire.SelectAgentRequest(query=f"subject{i} discreetly", session_id="thread-of-ann", history=history)
            await served.stub.SelectAgent(ask)
        records = await served.logged(session_id="thread-of-ann")
        for logged in records:
            detail = json.loads(logged.detail_json)
            assert repick(detail) == logged.subject == detail["picked"]
            assert detail["selection_call"]["model"] == "gpt-4o"
            assert len(detail["shortlist"]) == 10
    assert len(records) == 6
    with sqlite3.connect(tmp_path / "s/decisions/decisions.db") as connection:
        rows = str(connection.execute("SELECT * FROM decisions").fetchall())
    connection.close()
    assert "thread-of-ann" not in rows
    assert "discreetly" not in rows
    assert "confidential" not in rows


async def test_decisions_are_listed_by_page_session_subject_and_id(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(3))
        for i in range(7):
            await served.stub.SelectAgent(wire.SelectAgentRequest(query="subject0", session_id=f"s{i % 2}"))
        every = await served.logged(kind="selection")
        assert len(every) == 7
        assert len(await served.logged(session_id="s1")) == 3
        assert await served.logged(kind="admission") == []
        assert await served.logged(model="agent-999") == []
        paged: list[wire.DecisionRecord] = []
        token = ""
        while True:
            page = await served.stub.ListDecisions(wire.ListDecisionsRequest(page_size=3, page_token=token))
            paged += page.decisions
            token = page.next_page_token
            if not token:
                break
        assert paged == list(every)
        (one,) = await served.logged(decision_id=every[2].decision_id)
        assert one == every[2]
        for request, code in [
            (wire.ListDecisionsRequest(decision_id="unknown"), grpc.StatusCode.NOT_FOUND),
            (wire.ListDecisionsRequest(kind="other"), grpc.StatusCode.INVALID_ARGUMENT),
            (wire.ListDecisionsRequest(page_token="abc"), grpc.StatusCode.INVALID_ARGUMENT),
            (wire.ListDecisionsRequest(page_token="ff" * 8), grpc.StatusCode.INVALID_ARGUMENT),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await served.stub.ListDecisions(request)
            assert refused.value.code() is code


async def test_statistics_are_a_rollup_of_a_moment() -> None:
    store, clock = MemoryDecisionStore(), FakeClock(wall=100 * DAY)
    stats = GetStats(store, clock)
    caller = ALL.namespace
    await store.write([record(1)])
    first = await stats(_caller(caller))
    assert first.as_of == clock.wall()
    assert [(row.group, row.key, dict(row.figures)) for row in first.rows] == [
        ("admission", "managed/routine", {"admitted": 1.0, "decisions": 1.0})
    ]
    await store.write([record(2)])
    await clock.advance(ROLLUP_EVERY - 1)
    assert await stats(_caller(caller)) == first
    await clock.advance(1)
    second = await stats(_caller(caller))
    assert second.rows[0].figures["decisions"] == 2.0
    assert second.as_of == clock.wall()
    assert (await stats(_caller("other"))).rows == ()


async def test_what_is_past_its_retention_goes_at_the_start_and_every_hour() -> None:
    decisions, agents, clock = MemoryDecisionStore(), MemoryAgentStore(), FakeClock(wall=100 * DAY)
    old, kept = clock.wall() - 30 * DAY - 1, clock.wall() - 30 * DAY + 1
    await decisions.write([record(1)._replace(decide_time=old), record(2)._replace(decide_time=kept)])
    task = asyncio.ensure_future(Retention(decisions, agents, clock, keep=30 * DAY).run())
    await clock.advance(0)
    assert [entry.decision_id for entry in (await decisions.list(ALL, before=0, limit=9)).records] == ["id-2"]
    await clock.advance(PURGE_EVERY)
    assert (await decisions.list(ALL, before=0, limit=9)).records == ()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _caller(namespace: str) -> Caller:
    return Caller("x", namespace)


async def test_tallies_that_a_record_brings_are_summed() -> None:
    store = MemoryDecisionStore()
    await store.write([record(1)._replace(tallies=(Tally("selection_call", "m", "calls", 2.0),))])
    assert Tally("selection_call", "m", "calls", 2.0) in await store.totals("default")
