"""A TCP proxy on loopback that hurts a connection in every way that a network does."""

import asyncio
import contextlib
import enum
from types import TracebackType
from typing import Self


class Mode(enum.Enum):
    """What happens to bytes."""

    PASS = "pass"
    CUT = "cut"
    """Every connection is reset, new ones too."""
    BLACK_HOLE = "black hole"
    """Connections stand, and nothing comes through in either direction."""
    NO_REPLY = "no reply"
    """Requests come through and are done; their answers are lost."""


class ChaosProxy:
    """In front of 127.0.0.1:`target`. `delay` is added to each piece of an answer, in seconds.

    `turns` counts how often a client spoke after the server did, on all connections: its round trips.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.mode = Mode.PASS
        self.port = 0
        self.turns = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._reset()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, mode: Mode) -> None:
        """Hurt from now on in this way. Connections that were hurt are reset when the network is well again."""
        if mode is Mode.CUT or (mode is Mode.PASS and self.mode is not Mode.PASS):
            self._reset()
        self.mode = mode

    def point_to(self, target: int) -> None:
        """What an address that follows the primary does after a failover: other connections, to another server."""
        self.target = target
        self._reset()

    def _reset(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.mode is Mode.CUT:
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers.add(back)
        try:
            turn = _Turn()
            pumps = {
                asyncio.ensure_future(self._pump(reader, back, turn, answers=False)),
                asyncio.ensure_future(self._pump(there, writer, turn, answers=True)),
            }
            _, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._writers.discard(back)
            back.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, turn: "_Turn", *, answers: bool
    ) -> None:
        while piece := await source.read(65536):
            if turn.is_the_servers and not answers:
                self.turns += 1
            turn.is_the_servers = answers
            if answers and self.delay:
                await asyncio.sleep(self.delay)
            if self.mode is Mode.BLACK_HOLE or (answers and self.mode is Mode.NO_REPLY):
                continue
            with contextlib.suppress(OSError):
                sink.write(piece)
                await sink.drain()


class _Turn:
    """Who spoke last on a connection."""

    is_the_servers = True
