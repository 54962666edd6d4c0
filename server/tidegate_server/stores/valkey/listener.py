"""What a server publishes: a connection that only listens, and says when it may have missed something."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.ports import Clock
from tidegate_server.stores.valkey.link import connection_to

RETRY_AFTER: Nanos = SECOND // 10
QUIET_SECONDS = 1.0
"""A ping goes out after so long without a message; a second silence of that length is the end of the connection."""

Heard: TypeAlias = Callable[[bytes], None]

_log = logging.getLogger(__name__)


class Listener:
    """Subscribed to `channels` whenever that is possible.

    `heard` gets each message, in order. `joined` is awaited once the subscription stands, before anything is heard;
    `lost` is called when it has ended: what was published from then until the next `joined` was missed.
    """

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        clock: Clock,
        *,
        heard: Heard,
        joined: Callable[[], Awaitable[None]],
        lost: Callable[[], None],
    ) -> None:
        self._url = url
        self._channels = channels
        self._clock = clock
        self._heard = heard
        self._joined = joined
        self._lost = lost
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - whatever a driver raises in an outage, it is tried again
                _log.warning("Valkey: not subscribed (%s)", type(error).__name__)
            self._lost()
            await self._clock.sleep(RETRY_AFTER)

    async def _listen(self) -> None:
        connection = connection_to(self._url)
        try:
            async with asyncio.timeout(1.0):
                await connection.connect()  # type: ignore[no-untyped-call]  # the driver forgot its type
                for channel in self._channels:
                    await _send(connection, "SUBSCRIBE", channel)
                    await connection.read_response(timeout=math.inf)
            joining = asyncio.ensure_future(self._joined())
            try:
                while True:
                    await self._next(connection)
            finally:
                joining.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await joining
        finally:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await connection.disconnect(nowait=True)

    async def _next(self, connection: AbstractConnection) -> None:
        """Hear one message, or see that the connection still lives."""
        message = await connection.read_response(timeout=QUIET_SECONDS)
        if message is None:
            await _send(connection, "PING")
            message = await connection.read_response(timeout=QUIET_SECONDS)
            if message is None:
                raise TimeoutError
        if isinstance(message, list) and message[0] == b"message":
            self._heard(message[2])


async def _send(connection: AbstractConnection, *words: str) -> None:
    await connection.send_packed_command(connection.pack_command(*words), check_health=False)
