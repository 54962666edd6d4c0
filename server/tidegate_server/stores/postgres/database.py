"""One PostgreSQL database, spoken to in single statements.

Every statement is a transaction of its own, sent in one round trip: BEGIN, a guard, the statement, COMMIT. It depends
on nothing that a session remembers (no prepared statement, SET, LISTEN or session lock), so a pooler in transaction
mode may stand in between. The guard tells whether the server may be written: what a standby or a demoted primary says
is dropped, never taken for "there is none".

psycopg waits for the server when a call of its own is cancelled, and a server that is gone would keep it waiting. So
its calls are never cancelled here: a call that is late has its socket shut down, which ends it at once.
"""

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import psycopg

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import Clock
from tidegate_server.stores.breaker import Breaker
from tidegate_server.stores.postgres.schema import schema_fault
from tidegate_server.stores.sql import queries

CALL_SECONDS = 0.3
"""See `Database.call_seconds`."""

STATEMENT_SECONDS = 0.25
"""After so long the server itself gives a statement up; less than a call may take, so it is not left behind there."""

WALK_SECONDS = 5.0
"""The same for a page of a walk over everything, which no caller's admission waits for."""

SIZE = 8
"""Connections of one process. Calls share statements, so that more would not make anything faster."""

BEAT_EVERY: Nanos = SECOND
"""How soon a dead database is noticed without traffic, and how soon a healed one."""

Parameters: TypeAlias = Mapping[str, object]
Row: TypeAlias = tuple[Any, ...]
Connection: TypeAlias = "psycopg.AsyncConnection[Row]"

SQL = queries("postgres/connection")
_log = logging.getLogger(__name__)


class ReadOnlyServer(Exception):
    """The server is a standby, or takes no writes."""


class Database(Protocol):
    """What the stores need of PostgreSQL. `store` is what is asked for (pins, agents, decisions), for errors."""

    call_seconds: float
    """What a call may take that names no time of its own, the wait for a connection and its making included."""

    async def run(
        self, store: str, statement: str, parameters: Parameters, *, seconds: float | None = None
    ) -> Sequence[Row]:
        """The rows of one statement, committed. StoreUnavailable otherwise: then it happened whole or not at all."""
        ...

    def healthy(self, store: str) -> bool:
        """Whether the database answers, and the store's last statement worked."""
        ...

    def warnings(self) -> Sequence[str]:
        """What an operator should know."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...


class _Lane:
    """One connection at the most, and one call at a time on it."""

    def __init__(self, dsn: str, key_check: bytes) -> None:
        self._dsn = dsn
        self._key_check = key_check
        self._connection: Connection | None = None

    async def do(self, statement: str, parameters: Parameters, seconds: float) -> Sequence[Row]:
        """Connect if need be, and run it. Whatever goes wrong costs the connection."""
        if self._connection is not None and _is_stale(self._connection):
            await self.close()
        try:
            if self._connection is None:
                self._connection = await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, prepare_threshold=None, connect_timeout=2
                )
                await self._recognise(self._connection)
            return await _transaction(self._connection, statement, parameters, seconds)
        except BaseException:
            await self.close()
            raise

    def cut(self, task: "asyncio.Task[Any]") -> None:
        """End the call under way, without waiting for anybody."""
        if self._connection is None:
            task.cancel()  # still connecting; nothing was sent
            return
        with contextlib.suppress(OSError, psycopg.Error):
            wire = socket.socket(fileno=os.dup(self._connection.pgconn.socket))
            with wire:
                wire.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _recognise(self, connection: Connection) -> None:
        """Refuse a database of another version or under another key, whichever it was that failed over to it."""
        try:
            ((applied, key_check),) = await _transaction(connection, SQL["recognise"], {}, STATEMENT_SECONDS)
        except psycopg.errors.UndefinedTable as error:
            raise UnsafeState('the database has no schema of Tidegate; run "tidegate migrate"') from error
        if fault := schema_fault(applied or ()):
            raise UnsafeState(fault)
        if key_check is None:
            claim = {"key_check": self._key_check}
            ((key_check,),) = await _transaction(connection, SQL["claim"], claim, STATEMENT_SECONDS)
        if key_check != self._key_check:
            raise UnsafeState("the pins in the database are sealed under another key; name that key in keys.pins")


def _is_stale(connection: Connection) -> bool:
    """Whether the server has hung up meanwhile: it says nothing to an idle connection, other than that."""
    if connection.closed:
        return True
    watch = select.poll()
    watch.register(connection.pgconn.socket, select.POLLIN)
    return bool(watch.poll(0))


async def _transaction(connection: Connection, statement: str, parameters: Parameters, seconds: float) -> Sequence[Row]:
    async with connection.pipeline():
        await connection.execute("BEGIN")
        guard = await connection.execute(SQL["guard"], {"milliseconds": str(int(seconds * 1000))})
        cursor = await connection.execute(statement.encode(), parameters)
        await connection.execute("COMMIT")
    row = await guard.fetchone()
    if row is None or row[1]:
        raise ReadOnlyServer
    return await cursor.fetchall() if cursor.description is not None else ()


class PostgresDatabase:
    """A bounded pool. A slot is given back when its call has ended, however it ended and whoever still waited."""

    def __init__(self, dsn: str, key_check: bytes, *, size: int = SIZE, call_seconds: float = CALL_SECONDS) -> None:
        self.call_seconds = call_seconds
        self._free: asyncio.LifoQueue[_Lane] = asyncio.LifoQueue()
        self._size = size
        for _ in range(size):
            self._free.put_nowait(_Lane(dsn, key_check))
        self._calls: set[asyncio.Task[Sequence[Row]]] = set()
        self._problems: dict[str, str] = {}

    async def run(
        self, store: str, statement: str, parameters: Parameters, *, seconds: float | None = None
    ) -> Sequence[Row]:
        """See Database. Raises UnsafeState for a database that this server must never work on."""
        seconds = self.call_seconds if seconds is None else seconds
        end = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(end):
                lane = await self._free.get()
        except TimeoutError as error:
            self._note(store, "it does not answer in time")
            raise StoreUnavailable(store) from error
        task = asyncio.ensure_future(lane.do(statement, parameters, max(STATEMENT_SECONDS, seconds - 0.05)))
        self._calls.add(task)
        task.add_done_callback(lambda done: self._ended(lane, done))
        try:
            await asyncio.wait((task,), timeout=max(0.0, end - asyncio.get_running_loop().time()))
        except asyncio.CancelledError:
            lane.cut(task)
            raise
        if not task.done():
            lane.cut(task)
            self._note(store, "it does not answer in time")
            raise StoreUnavailable(store)
        return self._answer(store, task)

    def healthy(self, store: str) -> bool:
        """See Database."""
        return store not in self._problems and "database" not in self._problems

    def warnings(self) -> Sequence[str]:
        """See Database."""
        return [f"PostgreSQL ({store}): {problem}" for store, problem in sorted(self._problems.items())]

    async def beat(self) -> None:
        """Find out whether it takes writes; after that, what it failed at before is worth another try."""
        try:
            await self.run("database", SQL["beat"], {})
        except (StoreUnavailable, UnsafeState):
            return
        if self._problems:
            _log.warning("PostgreSQL answers again")
        self._problems.clear()

    async def close(self) -> None:
        """See Database."""
        while self._calls:
            await asyncio.wait(self._calls)
        for _ in range(self._size):
            await (await self._free.get()).close()

    def _ended(self, lane: _Lane, task: "asyncio.Task[Sequence[Row]]") -> None:
        self._calls.discard(task)
        self._free.put_nowait(lane)
        if not task.cancelled():
            task.exception()  # a caller that left does not ask for it

    def _answer(self, store: str, task: "asyncio.Task[Sequence[Row]]") -> Sequence[Row]:
        try:
            rows = task.result()
        except UnsafeState as error:
            self._note(store, str(error))
            raise
        except (Exception, asyncio.CancelledError) as error:  # whatever a driver raises in an outage, it is one
            self._note(store, _told(error))
            raise StoreUnavailable(store) from error
        self._problems.pop(store, None)
        return rows

    def _note(self, store: str, problem: str) -> None:
        if self._problems.get(store) != problem:
            self._problems[store] = problem
            _log.error("PostgreSQL (%s): %s", store, problem)


def _told(error: BaseException) -> str:
    """What went wrong, without what a driver says: that may hold addresses and names."""
    if isinstance(error, ReadOnlyServer):
        return "the server is a standby or takes no writes"
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return f"the server refused the statement (SQLSTATE {error.sqlstate})"
    return "it cannot be reached"


def _is_outage(error: BaseException | None) -> bool:
    """Whether the server is the matter, and not one statement: a record that it refuses must not cost the others."""
    return not isinstance(error, psycopg.DataError | psycopg.IntegrityError | psycopg.ProgrammingError)


class GuardedDatabase:
    """Any Database behind a breaker: in an outage calls fail at once, and a beat finds out when it is over."""

    def __init__(self, inner: PostgresDatabase, clock: Clock) -> None:
        self.call_seconds = inner.call_seconds
        self._inner = inner
        self._clock = clock
        self._breaker = Breaker(clock)
        self._beating = asyncio.ensure_future(self._beat())

    async def run(
        self, store: str, statement: str, parameters: Parameters, *, seconds: float | None = None
    ) -> Sequence[Row]:
        """See Database."""
        if not self._breaker.may_pass():
            raise StoreUnavailable(store)
        try:
            rows = await self._inner.run(store, statement, parameters, seconds=seconds)
        except UnsafeState as error:
            self._breaker.failed()
            raise StoreUnavailable(store) from error
        except StoreUnavailable as error:
            if _is_outage(error.__cause__):
                self._breaker.failed()
            else:
                self._breaker.worked()
            raise
        self._breaker.worked()
        return rows

    def healthy(self, store: str) -> bool:
        """See Database."""
        return not self._breaker.is_open and self._inner.healthy(store)

    def warnings(self) -> Sequence[str]:
        """See Database."""
        return self._inner.warnings()

    async def close(self) -> None:
        """See Database."""
        self._beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._beating
        await self._inner.close()

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(BEAT_EVERY)
            await self._inner.beat()
            if self._inner.healthy("database"):
                self._breaker.worked()


async def open_database(
    dsn: str, key_check: bytes, clock: Clock, *, size: int = SIZE, call_seconds: float = CALL_SECONDS
) -> GuardedDatabase:
    """The database, recognised where it can be reached. Raises UnsafeState when it must not be used.

    One that cannot be reached now is unhealthy until it can, and is recognised then, before anything is read.
    """
    database = PostgresDatabase(dsn, key_check, size=size, call_seconds=call_seconds)
    try:
        with contextlib.suppress(StoreUnavailable):
            await database.run("database", SQL["beat"], {}, seconds=2.0)
    except BaseException:
        await database.close()
        raise
    return GuardedDatabase(database, clock)
