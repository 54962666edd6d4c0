"""Flows in memory: for tests, ours and our users'. It passes the suite of the durable stores and forgets everything."""

from collections.abc import Callable

from tidegate_server.core.flow.book import FlowBook
from tidegate_server.core.flow.model import (
    Entered,
    Exited,
    Flow,
    FlowAsk,
    FlowKey,
    FlowPage,
    FlowPlace,
    HopAsk,
    Listener,
    Missing,
    Misused,
    Recorded,
    Refused,
)
from tidegate_server.core.model import WallTime
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock
from tidegate_server.stores.flow_listeners import FlowListeners
from tidegate_server.stores.flow_time import FlowTime


class MemoryFlowStore:
    """A FlowStore over the book alone. `unavailable` lets a test take it away."""

    def __init__(self, clock: Clock) -> None:
        self.unavailable = False
        self._time = FlowTime(clock)
        self._listeners = FlowListeners()
        self._book = FlowBook(self._listeners.tell)

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        """See FlowStore."""
        return self._working().enter(ask, self._time.now())

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        """See FlowStore."""
        return self._working().would_enter(ask, self._time.now(), count=count)

    async def check(self, ask: FlowAsk) -> Refused | None:
        """See FlowStore."""
        return self._working().check(ask, self._time.now())

    async def cancel(self, key: FlowKey, hop_id: str) -> None:
        """See FlowStore."""
        self._working().cancel(key, hop_id, self._time.now())

    async def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool) -> Exited | Missing:
        """See FlowStore."""
        return self._working().exit(key, hop_id, tokens, success, self._time.now())

    async def record(self, key: FlowKey, hop_id: str, tokens: int, request_id: str) -> Recorded | Missing | Misused:
        """See FlowStore."""
        return self._working().record(key, hop_id, tokens, request_id, self._time.now())

    async def get(self, key: FlowKey) -> tuple[Flow, WallTime] | None:
        """See FlowStore."""
        now = self._time.now()
        flow = self._working().get(key, now)
        return (flow, now) if flow is not None else None

    async def list(
        self, namespace: str, *, open_only: bool, after: FlowPlace | None, limit: int
    ) -> tuple[FlowPage, WallTime]:
        """See FlowStore."""
        now = self._time.now()
        return self._working().page(namespace, now, open_only=open_only, after=after, limit=limit), now

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See FlowStore."""
        return self._listeners.add(listener)

    async def sweep(self, limit: int) -> int:
        """See FlowStore."""
        return self._working().sweep(self._time.now(), limit)

    def healthy(self) -> bool:
        """See FlowStore."""
        return not self.unavailable

    async def close(self) -> None:
        """See FlowStore."""

    def _working(self) -> FlowBook:
        if self.unavailable:
            raise StoreUnavailable("flows")
        return self._book
