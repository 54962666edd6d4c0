"""Messages between the replicas over Valkey or Redis: the port `Peers`. A lost one is said again by its sender."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock
from tidegate_server.stores.valkey.link import Link, channel
from tidegate_server.stores.valkey.listener import Listener


class ValkeyPeers:
    """All replicas on one database of one server."""

    def __init__(self, link: Link, url: str, clock: Clock) -> None:
        self._link = link
        self._channel = channel(url, "peers")
        self._heard: Callable[[bytes], None] = lambda message: None
        self._sending: set[asyncio.Future[Any]] = set()
        self._listener = Listener(url, [self._channel], clock, heard=self._hear, joined=_nothing, lost=lambda: None)

    def send(self, message: bytes) -> None:
        """See Peers."""
        task = asyncio.ensure_future(self._publish(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def listen(self, heard: Callable[[bytes], None]) -> None:
        """See Peers."""
        self._heard = heard

    async def close(self) -> None:
        """Say what was to be said, then let go of the connection that listens."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=1.0)
        await self._listener.close()

    def _hear(self, message: bytes) -> None:
        self._heard(message)

    async def _publish(self, message: bytes) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._link.call("facts", "PUBLISH", self._channel, message)


async def _nothing() -> None:
    pass
