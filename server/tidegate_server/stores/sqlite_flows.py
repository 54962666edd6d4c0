"""Flows in SQLite: the embedded mode's store.

The book of all flows is in memory and belongs to the database's thread. A call is a job there: it changes the book and
the file in one transaction, which all jobs that wait share, and is answered after the commit. Where a job or a commit
fails the file is right and the book is not: it is read anew before the next job.

The journal is not synced at every commit (`synchronous = NORMAL`): state outlives the death of the process, however
sudden. A power cut may take the last moments; what is then missing is refused, not started afresh.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from tidegate_server.core.flow.book import FlowBook
from tidegate_server.core.flow.model import (
    Entered,
    EventKind,
    Exited,
    Flow,
    FlowAsk,
    FlowEvent,
    FlowKey,
    FlowLimits,
    FlowPage,
    FlowPlace,
    Hop,
    HopAsk,
    Listener,
    Missing,
    Misused,
    Record,
    Recorded,
    Refused,
    Remaining,
)
from tidegate_server.core.model import WallTime
from tidegate_server.ports import Clock
from tidegate_server.stores.flow_listeners import FlowListeners
from tidegate_server.stores.flow_time import FlowTime
from tidegate_server.stores.sqlite_database import Job, SqliteDatabase

Result = TypeVar("Result")

_PUT_FLOW = (
    "INSERT INTO flows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, trace_id) DO UPDATE"
    " SET keep_until = excluded.keep_until, refusals = excluded.refusals"
)
_PUT_HOP = (
    "INSERT INTO hops VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (namespace, trace_id, hop_id) DO UPDATE"
    " SET recorded = excluded.recorded, finish = excluded.finish, success = excluded.success"
)
_PUT_RECORD = "INSERT INTO records VALUES (?, ?, ?, ?, ?)"
_DROP_HOP = "DELETE FROM hops WHERE namespace = ? AND trace_id = ? AND hop_id = ?"
_DROP_FLOW = (
    "DELETE FROM records WHERE namespace = ? AND trace_id = ?",
    "DELETE FROM hops WHERE namespace = ? AND trace_id = ?",
    "DELETE FROM flows WHERE namespace = ? AND trace_id = ?",
)
_OVER = "(SELECT namespace, trace_id FROM flows WHERE keep_until < ?)"
_DROP_OVER = (
    f"DELETE FROM records WHERE (namespace, trace_id) IN {_OVER}",  # noqa: S608 - constants only
    f"DELETE FROM hops WHERE (namespace, trace_id) IN {_OVER}",  # noqa: S608 - constants only
    "DELETE FROM flows WHERE keep_until < ?",
)
_LATEST = "SELECT MAX(at) FROM (SELECT at FROM seen UNION ALL SELECT start FROM hops UNION ALL SELECT finish FROM hops)"


class _FlowDatabase(SqliteDatabase):
    """Tells the store how each transaction ended, on the database's thread and before its callers are answered."""

    committed: Callable[[], None]
    undone: Callable[[], None]

    def _run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        try:
            answers = super()._run(jobs)
        except BaseException:
            self.undone()
            raise
        self.committed()
        return answers


class SqliteFlowStore:
    """The port `FlowStore` on one file, `flows/flows.db` in the state directory."""

    def __init__(self, database: _FlowDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._listeners = FlowListeners()
        self._loop = asyncio.get_running_loop()
        # What follows belongs to the database's thread.
        self._time = FlowTime(clock)
        self._book: FlowBook | None = None
        self._job_events: list[FlowEvent] = []
        self._events: list[FlowEvent] = []
        database.committed = self._committed
        database.undone = self._undone

    @classmethod
    async def open(cls, state: Path, clock: Clock) -> Self:
        """Open the store in the state directory, or make it, and read what it holds.

        UnsafeState when what lies there must not be used.
        """
        store = cls(_FlowDatabase.open(state, "flows", synchronous="NORMAL"), clock)
        try:
            await store._database.do(store._start)
        except BaseException:
            await store.close()
            raise
        return store

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        """See FlowStore."""
        return await self._do(lambda book, now: book.enter(ask, now))

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        """See FlowStore."""
        return await self._do(lambda book, now: book.would_enter(ask, now, count=count))

    async def check(self, ask: FlowAsk) -> Refused | None:
        """See FlowStore."""
        return await self._do(lambda book, now: book.check(ask, now))

    async def cancel(self, key: FlowKey, hop_id: str) -> None:
        """See FlowStore."""
        await self._do(lambda book, now: book.cancel(key, hop_id, now))

    async def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool) -> Exited | Missing:
        """See FlowStore."""
        return await self._do(lambda book, now: book.exit(key, hop_id, tokens, success, now))

    async def record(self, key: FlowKey, hop_id: str, tokens: int, request_id: str) -> Recorded | Missing | Misused:
        """See FlowStore."""
        return await self._do(lambda book, now: book.record(key, hop_id, tokens, request_id, now))

    async def get(self, key: FlowKey) -> tuple[Flow, WallTime] | None:
        """See FlowStore."""
        flow, now = await self._do(lambda book, now: (book.get(key, now), now))
        return (flow, now) if flow is not None else None

    async def list(
        self, namespace: str, *, open_only: bool, after: FlowPlace | None, limit: int
    ) -> tuple[FlowPage, WallTime]:
        """See FlowStore."""
        return await self._do(
            lambda book, now: (book.page(namespace, now, open_only=open_only, after=after, limit=limit), now)
        )

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See FlowStore."""
        return self._listeners.add(listener)

    async def sweep(self, limit: int) -> int:
        """See FlowStore. Writes the time down, whether or not there is something to forget."""

        def job(connection: sqlite3.Connection) -> int:
            swept = self._on_book(connection, lambda book, now: book.sweep(now, limit))
            connection.execute("UPDATE seen SET at = ?", (self._time.now(),))
            return swept

        return await self._database.do(job)

    def healthy(self) -> bool:
        """See FlowStore."""
        return self._database.healthy()

    async def close(self) -> None:
        """See FlowStore."""
        await self._database.close()

    async def _do(self, step: Callable[[FlowBook, WallTime], Result]) -> Result:
        return await self._database.do(lambda connection: self._on_book(connection, step))

    def _on_book(self, connection: sqlite3.Connection, step: Callable[[FlowBook, WallTime], Result]) -> Result:
        """One step on the book, with what it changed written to the file."""
        try:
            book = self._book or self._read(connection)
            result = step(book, self._time.now())
            for event in self._job_events:
                _write(connection, book, event)
        except BaseException:
            self._book = None
            self._job_events = []
            raise
        self._events += self._job_events
        self._job_events = []
        return result

    def _start(self, connection: sqlite3.Connection) -> None:
        (not_before,) = connection.execute(_LATEST).fetchone()
        self._time = FlowTime(self._clock, not_before)
        for statement in _DROP_OVER:
            connection.execute(statement, (self._time.now(),))
        self._read(connection)

    def _read(self, connection: sqlite3.Connection) -> FlowBook:
        flows = {}
        for row in connection.execute("SELECT * FROM flows ORDER BY start, trace_id"):
            namespace, trace_id, start, keep_until, depth, fan_out, tokens, timeout, refusals = row
            flow = Flow(FlowKey(namespace, trace_id), FlowLimits(depth, fan_out, tokens, timeout), start)
            flow.keep_until, flow.refusals = keep_until, refusals
            flows[flow.key] = flow
        for namespace, trace_id, *columns in connection.execute("SELECT * FROM hops ORDER BY position"):
            flows[FlowKey(namespace, trace_id)].put(_hop(columns))
        for namespace, trace_id, *columns in connection.execute("SELECT * FROM records"):
            record = Record(*columns)
            flows[FlowKey(namespace, trace_id)].records[record.request_id] = record
        book = FlowBook(self._job_events_append)
        for flow in flows.values():
            book.restore(flow)
        self._book = book
        return book

    def _job_events_append(self, event: FlowEvent) -> None:
        self._job_events.append(event)

    def _committed(self) -> None:
        events, self._events = self._events, []
        if events and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, events)

    def _undone(self) -> None:
        self._book = None
        self._events, self._job_events = [], []

    def _tell(self, events: Sequence[FlowEvent]) -> None:
        for event in events:
            self._listeners.tell(event)


def _write(connection: sqlite3.Connection, book: FlowBook, event: FlowEvent) -> None:
    """Write down what one event changed. Refusals are counted with the next change that lasts."""
    key, hop = event.key, event.hop
    if event.kind is EventKind.FORGOTTEN:
        for statement in _DROP_FLOW:
            connection.execute(statement, key)
    elif event.kind is EventKind.CANCELLED and hop is not None:
        connection.execute(_DROP_HOP, (*key, hop.hop_id))
    elif hop is not None:
        flow = book.peek(key)
        assert flow is not None, "a hop that changed belongs to a flow"
        if event.kind is not EventKind.RECORDED:
            connection.execute(_PUT_FLOW, (*key, flow.start, flow.keep_until, *flow.limits, flow.refusals))
        connection.execute(_PUT_HOP, (*key, *_columns(hop)))
        if event.record is not None and event.record.request_id:
            connection.execute(_PUT_RECORD, (*key, *event.record))


def _columns(hop: Hop) -> tuple[object, ...]:
    return (
        hop.hop_id,
        hop.parent,
        hop.caller,
        hop.target,
        json.dumps(hop.chain, ensure_ascii=False),
        hop.order,
        hop.start,
        hop.reserve,
        hop.request_id,
        *hop.remaining,
        hop.recorded,
        hop.end,
        hop.success,
    )


def _hop(columns: Sequence[Any]) -> Hop:
    hop_id, parent, caller, target, chain_text, order, start, reserve, request_id, *left, recorded, end, success = (
        columns
    )
    chain = tuple(json.loads(chain_text))
    return Hop(
        hop_id,
        parent,
        caller,
        target,
        len(chain),
        chain,
        order,
        start,
        reserve,
        request_id,
        Remaining(*left),
        recorded,
        end,
        bool(success) if success is not None else None,
    )
