"""The flows as they stand: one, a page of them, and their changes while they happen (§8 of the contract)."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple, TypeAlias

from tidegate_server.core.flow.model import EventKind, Flow, FlowEvent, FlowKey, FlowPage, FlowPlace
from tidegate_server.core.model import SECOND, Caller, Nanos, WallTime
from tidegate_server.core.requests import id_fault
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound, Overloaded, StoreUnavailable
from tidegate_server.ports import Clock, FlowStore

PAGE = 100
MAX_PAGE = 1_000
WATCH_QUEUE = 1_000
"""Events that wait for one watcher; what comes on top is lost to it, and counted."""

MAX_WATCHERS = 100

TEND_EVERY: Nanos = SECOND
SWEPT_AT_ONCE = 1_000
"""Flows that one sweep forgets at most: what is being entered waits for no more than that."""

_SHOWN = (EventKind.ENTERED, EventKind.EXITED, EventKind.CANCELLED, EventKind.REFUSED)


class FlowSnapshot(NamedTuple):
    """A flow as it stands at `now`, the store's time."""

    flow: Flow
    now: WallTime


class EventsLost(NamedTuple):
    """The watcher was too slow: so many events are missing here. `key` is the flow, None when it is more than one."""

    lost: int
    key: FlowKey | None


Watched: TypeAlias = FlowSnapshot | FlowEvent | EventsLost


async def get_flow(store: FlowStore, flow_id: str, caller: Caller) -> FlowSnapshot:
    """One flow of the caller's namespace. Raises InvalidRequest, NotFound, StoreUnavailable."""
    if fault := id_fault(flow_id):
        raise InvalidRequest([FieldViolation("flow_id", fault)])
    found = await store.get(FlowKey(caller.namespace, flow_id))
    if found is None:
        raise NotFound("flow", flow_id)
    return FlowSnapshot(*found)


async def list_flows(
    store: FlowStore, caller: Caller, *, page_size: int, page_token: str, open_only: bool
) -> tuple[FlowPage, WallTime]:
    """A page of the caller's namespace, newest first. Raises InvalidRequest, StoreUnavailable."""
    place = _place(page_token)
    violations = []
    if page_size < 0:
        violations.append(FieldViolation("page_size", "is negative"))
    if page_token and place is None:
        violations.append(FieldViolation("page_token", "is not one that this server gave"))
    if violations:
        raise InvalidRequest(violations)
    limit = min(page_size or PAGE, MAX_PAGE)
    return await store.list(caller.namespace, open_only=open_only, after=place, limit=limit)


def page_token(place: FlowPlace | None) -> str:
    """Where the next page starts, as text; "" at the end."""
    return f"{place.start:016x}{place.trace_id}" if place is not None else ""


def _place(token: str) -> FlowPlace | None:
    if len(token) != 48 or token.strip("0123456789abcdef"):
        return None
    return FlowPlace(int(token[:16], 16), token[16:])


class WatchFlows:
    """Watches flows for any number of callers, up to a bound. A slow one loses events, and slows nobody."""

    def __init__(self, store: FlowStore, *, queue: int = WATCH_QUEUE, max_watchers: int = MAX_WATCHERS) -> None:
        self._store = store
        self._queue = queue
        self._max_watchers = max_watchers
        self.watchers = 0

    async def __call__(self, flow_id: str, caller: Caller) -> AsyncGenerator[Watched, None]:
        """Snapshots of what is watched, then each change. `flow_id` "" is every flow of the caller's namespace.

        What changes while the snapshots are taken may be told twice: in the snapshot and as an event, which holds the
        whole hop. Raises InvalidRequest, Overloaded, StoreUnavailable.
        """
        if flow_id and (fault := id_fault(flow_id)):
            raise InvalidRequest([FieldViolation("flow_id", fault)])
        if self.watchers >= self._max_watchers:
            raise Overloaded("watchers")
        self.watchers += 1
        mailbox = _Mailbox(caller.namespace, flow_id, self._queue)
        end = self._store.subscribe(mailbox.put)
        try:
            async for snapshot in self._snapshots(flow_id, caller):
                yield snapshot
            while True:
                yield await mailbox.take()
        finally:
            end()
            self.watchers -= 1

    async def _snapshots(self, flow_id: str, caller: Caller) -> AsyncIterator[FlowSnapshot]:
        if flow_id:
            found = await self._store.get(FlowKey(caller.namespace, flow_id))
            if found is not None:
                yield FlowSnapshot(*found)
            return
        after: FlowPlace | None = None
        while True:
            page, now = await self._store.list(caller.namespace, open_only=False, after=after, limit=MAX_PAGE)
            for flow in page.flows:
                yield FlowSnapshot(flow, now)
            if page.next is None:
                return
            after = page.next


class _Mailbox:
    """Events for one watcher, at most `limit`; when it is full, what comes is counted in its place."""

    def __init__(self, namespace: str, flow_id: str, limit: int) -> None:
        self._namespace = namespace
        self._flow_id = flow_id
        self._limit = limit
        self._events: deque[FlowEvent] = deque()
        self._lost = 0
        self._lost_keys: set[FlowKey] = set()
        self._filled = asyncio.Event()

    def put(self, event: FlowEvent) -> None:
        """Take an event, if it is one of those watched."""
        if event.kind not in _SHOWN or event.key.namespace != self._namespace:
            return
        if self._flow_id and event.key.trace_id != self._flow_id:
            return
        # Once something is lost, everything is until the watcher has read what there was: so the gap has one place.
        if self._lost or len(self._events) >= self._limit:
            self._lost += 1
            if len(self._lost_keys) < 2:
                self._lost_keys.add(event.key)
            return
        self._events.append(event)
        self._filled.set()

    async def take(self) -> Watched:
        """The next event, or the gap after those that were kept."""
        while not self._events and not self._lost:
            self._filled.clear()
            await self._filled.wait()
        if self._events:
            return self._events.popleft()
        only = next(iter(self._lost_keys)) if len(self._lost_keys) == 1 else None
        gap = EventsLost(self._lost, only)
        self._lost = 0
        self._lost_keys.clear()
        return gap


async def tend(store: FlowStore, clock: Clock, *, every: Nanos = TEND_EVERY) -> None:
    """Sweep for ever, a bounded piece at a time, so that state does not grow.

    A store that failed is found well again by this, without any traffic.
    """
    while True:
        swept = 0
        with contextlib.suppress(StoreUnavailable):  # told by its health
            swept = await store.sweep(SWEPT_AT_ONCE)
        await clock.sleep(every if swept < SWEPT_AT_ONCE else 0)
