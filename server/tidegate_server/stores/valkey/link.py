"""One connection to Valkey or Redis: calls of one tick go out together, and answers come back in their order.

A call that is late, or whose caller went away, is answered into the void; the connection lives on unless nothing at all
comes any more. Then everything that waits on it fails at once and the next call connects anew.
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import Clock
from tidegate_server.stores.breaker import Breaker
from tidegate_server.stores.functions import Library

ANSWER_SECONDS = 0.2
"""What a call may take by default. §8 gives 300 ms until the refusal is out; the rest is for the way there and back."""

CONNECT_SECONDS = 0.5
BEAT_EVERY: Nanos = SECOND // 4
"""How soon a dead server is noticed without traffic, and how soon a healed one."""

OLDEST = 7
"""Functions came with Redis 7."""

Word: TypeAlias = str | bytes | int
Info: TypeAlias = Mapping[str, str]

_WRONG_SERVER = ("READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "MISCONF", "NOREPLICAS", "OOM")
"""Errors after which the connection is given up: another server may be behind the address by now."""

_log = logging.getLogger(__name__)


class _Call(NamedTuple):
    words: Sequence[Word]
    future: asyncio.Future[Any]


def connection_to(url: str) -> AbstractConnection:
    """A connection that is not open yet. `valkey://` and `valkeys://` are the same as `redis://` and `rediss://`."""
    options: dict[str, Any] = dict(parse_url(url.replace("valkey", "redis", 1) if url.startswith("valkey") else url))
    kind = options.pop("connection_class", Connection)
    connection: AbstractConnection = kind(
        **options,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None,
        socket_connect_timeout=CONNECT_SECONDS,
        client_name="tidegate",
    )
    return connection


def channel(url: str, name: str) -> str:
    """A channel of this database: unlike keys, channels are the whole server's."""
    return f"tidegate:{name}:{urlsplit(url).path.strip('/') or '0'}"


class Link:
    """Calls on one connection, made when first needed and made again after it was lost."""

    def __init__(
        self, url: str, libraries: Sequence[Library], clock: Clock, *, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._answer_seconds = answer_seconds
        self._url = url
        self._libraries = libraries
        self._clock = clock
        self._breaker = Breaker(clock)
        self._connection: AbstractConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._outbox: list[_Call] = []
        self._sent: deque[_Call] = deque()
        self._scheduled = False
        self._warnings: tuple[str, ...] = ()
        self._problem = ""
        self._closed = False

    async def open(self) -> None:
        """Connect, if the server can be reached now. Raises UnsafeState for one that must not be used."""
        try:
            await asyncio.wait_for(self._connect(), 4 * CONNECT_SECONDS)
        except UnsafeState:
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self._note(type(error).__name__)
            self._breaker.failed()

    async def call(self, store: str, *words: Word, seconds: float | None = None) -> Any:
        """The answer to one command. StoreUnavailable when there is none in time, or an error.

        A function that the server does not know is loaded, and called again: it had not run.
        """
        if self._closed or not self._breaker.may_pass():
            raise StoreUnavailable(store)
        try:
            async with asyncio.timeout(self._answer_seconds if seconds is None else seconds):
                answer = await self._submit(words)
                if _is_unknown_function(answer):
                    for library in self._libraries:
                        await self._submit(("FUNCTION", "LOAD", library.code))
                    answer = await self._submit(words)
        except (RedisError, OSError, TimeoutError, UnsafeState) as error:
            self._failed(error)
            raise StoreUnavailable(store) from error
        if isinstance(answer, ResponseError):
            self._failed(answer)
            raise StoreUnavailable(store) from answer
        self._problem = ""
        self._breaker.worked()
        return answer

    def healthy(self) -> bool:
        """Whether the last call worked."""
        return self._breaker.is_well and not self._closed

    def warnings(self) -> Sequence[str]:
        """What an operator should know of the server."""
        return [*self._warnings, *([f"Valkey: {self._problem}"] if self._problem else [])]

    async def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        self._drop(OSError("closed"))
        for task in (self._connecting, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _submit(self, words: Sequence[Word]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outbox.append(_Call(words, future))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        return await future

    def _flush(self) -> None:
        """Send what this tick has gathered, in one write."""
        self._scheduled = False
        if self._connection is None:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._connect_for_calls())
            return
        calls = [call for call in self._outbox if not call.future.done()]
        self._outbox.clear()
        if not calls:
            return
        try:
            packed = self._connection.pack_commands([call.words for call in calls])
            writer = self._connection._writer  # noqa: SLF001 - the public way awaits, and two ticks could interleave
            assert writer is not None
            writer.writelines(packed)
        except (OSError, RedisError, AssertionError) as error:
            self._sent.extend(calls)
            self._drop(error)
            return
        self._sent.extend(calls)

    async def _connect_for_calls(self) -> None:
        try:
            await asyncio.wait_for(self._connect(), 2 * CONNECT_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever a driver raises in an outage, the next call tries again
            self._drop(error)

    async def _connect(self) -> None:
        connection = connection_to(self._url)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]  # the driver forgot its type
            info = parse_info(await _ask(connection, "INFO"))
            if fault := server_fault(info):
                raise UnsafeState(fault)
            for library in self._libraries:
                try:
                    await _ask(connection, "FUNCTION", "LOAD", library.code)
                except ResponseError as error:
                    if "already exists" not in str(error):
                        raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._warnings = server_warnings(info)
        for warning in self._warnings:
            _log.warning("Valkey: %s", warning)
        self._connection = connection
        self._reading = asyncio.ensure_future(self._read(connection))
        self._flush()

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                answer = await connection.read_response(timeout=math.inf)
            except ResponseError as error:
                answer = error
            except Exception as error:  # noqa: BLE001 - as above
                if connection is self._connection:
                    self._drop(error)
                return
            if not self._sent:
                self._drop(OSError("an answer that nobody asked for"))
                return
            future = self._sent.popleft().future
            if not future.done():
                future.set_result(answer)

    def _drop(self, error: Exception) -> None:
        """Give the connection up, and everything that waits for it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection._close()  # type: ignore[no-untyped-call]  # noqa: SLF001 - at once, from anywhere
        waiting = [*self._sent, *self._outbox]
        self._sent.clear()
        self._outbox.clear()
        for call in waiting:
            if not call.future.done():
                call.future.set_exception(OSError(type(error).__name__))

    def _failed(self, error: Exception) -> None:
        self._breaker.failed()
        if isinstance(error, TimeoutError) and self._sent:
            self._drop(error)  # nothing came for so long: the way is dead, whoever else waits on it
        if isinstance(error, ResponseError) and str(error).startswith(_WRONG_SERVER):
            self._drop(error)
        self._note(str(error).split(" ", 1)[0] if isinstance(error, ResponseError) else _told(error))

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("Valkey: %s", problem)


def _told(error: Exception) -> str:
    """What went wrong, without what a driver says: that may hold addresses."""
    return str(error) if isinstance(error, UnsafeState) else f"it cannot be reached ({type(error).__name__})"


def _is_unknown_function(answer: object) -> bool:
    return isinstance(answer, ResponseError) and "Function not found" in str(answer)


async def _ask(connection: AbstractConnection, *words: Word) -> Any:
    await connection.send_packed_command(connection.pack_command(*words), check_health=False)
    return await connection.read_response()


def parse_info(raw: bytes) -> Info:
    """The fields of INFO."""
    lines = (line.partition(":") for line in raw.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}


def server_fault(info: Info) -> str:
    """Why this server must not be used; "" when it may."""
    version = info.get("redis_version", "0")
    if int(version.split(".")[0]) < OLDEST:
        return f"the server is version {version}; Valkey, or Redis {OLDEST} or newer, is needed"
    if info.get("role", "master") != "master":
        return "the server is a replica; name the primary, or an address that follows it"
    if info.get("maxmemory", "0") != "0" and info.get("maxmemory_policy", "noeviction") != "noeviction":
        return f"the server may evict what is stored (maxmemory-policy {info['maxmemory_policy']}); set noeviction"
    return ""


def server_warnings(info: Info) -> tuple[str, ...]:
    """What is allowed and risky."""
    warnings = []
    if info.get("maxmemory_policy", "noeviction") != "noeviction":
        warnings.append(f"maxmemory-policy is {info['maxmemory_policy']}: with a maxmemory it would evict flows")
    if info.get("aof_enabled") == "0" and info.get("connected_slaves") == "0":
        warnings.append("neither an append-only file nor a replica: its restart ends every flow")
    return tuple(warnings)
