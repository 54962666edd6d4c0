"""Flows in Valkey or Redis: the shared mode's store (§8 of the contract).

A hop is one call of a function that checks and charges in one atomic step, by the server's clock. What the function
does is in functions/flows.lua; what is here asks it, tells its answers in the contract's words, and keeps the list of
flows, which an operator pages through. That list has keys of its own in other slots; no rule depends on it.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from tidegate_server.core.flow.book import HOPS_PER_PAGE
from tidegate_server.core.flow.model import (
    Entered,
    EventKind,
    Exited,
    Flow,
    FlowAsk,
    FlowEvent,
    FlowKey,
    FlowPage,
    FlowPlace,
    HopAsk,
    Listener,
    Missing,
    Misused,
    Recorded,
    Refused,
    Remaining,
)
from tidegate_server.core.model import SECOND, WallTime
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock
from tidegate_server.stores.flow_listeners import FlowListeners
from tidegate_server.stores.functions import library
from tidegate_server.stores.valkey.flow_words import (
    hop_words,
    proof_words,
    read_event,
    read_flow,
    read_hop,
    read_refusal,
    refusal_event,
)
from tidegate_server.stores.valkey.link import Link, channel
from tidegate_server.stores.valkey.listener import Listener as Subscription

NAMESPACES = "tidegate:flow-namespaces"
BEAT_KEY = "tidegate:flow-beat"

FLOWS = library("flows")

_BAD_REQUEST_ID = Misused("was used for another parent, caller or target in this flow")
_BAD_RECORD = Misused("was used for another record of tokens")
_LISTED_AT_ONCE = 200
_HOLDS = "flows"
_OWED_KEPT = 10_000

_log = logging.getLogger(__name__)


def flow_key(key: FlowKey) -> str:
    """The one key of a flow. What stands in braces decides the slot, and is of fixed form whatever a name holds."""
    return f"tidegate:flow:{{{_digest(key.namespace)}{key.trace_id}}}"


def index_key(namespace: str) -> str:
    """The flows of a namespace, by start and trace id."""
    return f"tidegate:flows:{_digest(namespace)}"


def _digest(namespace: str) -> str:
    return hashlib.blake2b(namespace.encode(), digest_size=8).hexdigest()


class ValkeyFlowStore:
    """The port `FlowStore` over one link. `now` is a test's clock in place of the server's."""

    def __init__(self, link: Link, url: str, clock: Clock, *, now: Callable[[], WallTime] | None = None) -> None:
        self._link = link
        self._url = url
        self._clock = clock
        self._now = now
        self._channel = channel(url, "flow-events")
        self._origin = secrets.token_hex(8)
        self._listeners = FlowListeners()
        self._subscribers = 0
        self._subscription: Subscription | None = None
        self._ended: set[asyncio.Future[Any]] = set()
        self._owed: dict[tuple[FlowKey, str], None] = {}
        self._cursors: dict[str, str] = {}

    @classmethod
    async def open(cls, link: Link, url: str, clock: Clock, *, now: Callable[[], WallTime] | None = None) -> Self:
        """The flows of that server."""
        return cls(link, url, clock, now=now)

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        """See FlowStore. A grant whose answer is lost is given back as soon as the server can be reached."""
        try:
            answer = await self._function("enter", ask.key, *hop_words(ask))
        except (StoreUnavailable, asyncio.CancelledError):
            self._owe(ask.key, ask.hop_id)
            raise
        with _checked():
            if answer[0] != b"entered":
                return self._refused(ask, answer, count=True)
            hop, start, timeout = read_hop(answer[1]), int(answer[2]), int(answer[3])
            if answer[6]:
                self._listeners.tell(FlowEvent(EventKind.FORGOTTEN, ask.key))
            if not answer[4]:
                self._listeners.tell(FlowEvent(EventKind.ENTERED, ask.key, hop))
            if answer[5]:
                self._list(ask, start)
            return Entered(hop, start, timeout, repeated=bool(answer[4]))

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        """See FlowStore."""
        answer = await self._function("would_enter", ask.key, *hop_words(ask), int(count))
        with _checked():
            return None if answer[0] == b"granted" else self._refused(ask, answer, count=count)

    async def check(self, ask: FlowAsk) -> Refused | None:
        """See FlowStore."""
        answer = await self._function("check", ask.key, *proof_words(ask.proof, ask.agent))
        with _checked():
            return None if answer[0] == b"granted" else read_refusal(ask, answer)

    async def cancel(self, key: FlowKey, hop_id: str) -> None:
        """See FlowStore."""
        answer = await self._function("cancel", key, hop_id)
        with _checked():
            if answer[0] == b"nothing":
                return
            hop = read_hop(answer[1])._replace(success=False)
            self._listeners.tell(FlowEvent(EventKind(answer[0].decode()), key, hop))
            if answer[2]:
                self._listeners.tell(FlowEvent(EventKind.FORGOTTEN, key))

    async def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool) -> Exited | Missing:
        """See FlowStore."""
        answer = await self._function("exit", key, hop_id, tokens, int(success))
        with _checked():
            if answer[0] == b"missing":
                return Missing(answer[1].decode())
            if answer[1]:
                self._listeners.tell(FlowEvent(EventKind.EXITED, key, read_hop(answer[3])))
            return Exited(bool(answer[1]), Remaining(*(int(word) for word in answer[2])))

    async def record(self, key: FlowKey, hop_id: str, tokens: int, request_id: str) -> Recorded | Missing | Misused:
        """See FlowStore."""
        answer = await self._function("record", key, hop_id, tokens, request_id)
        with _checked():
            if answer[0] == b"missing":
                return Missing(answer[1].decode())
            if answer[0] == b"misused":
                return _BAD_RECORD
            if answer[4]:
                self._listeners.tell(FlowEvent(EventKind.RECORDED, key, read_hop(answer[4])))
            return Recorded(int(answer[1]), int(answer[2]), bool(answer[3]))

    async def get(self, key: FlowKey) -> tuple[Flow, WallTime] | None:
        """See FlowStore."""
        now, fields = await self._function("read", key)
        with _checked():
            return (read_flow(key, fields), int(now)) if fields else None

    async def list(
        self, namespace: str, *, open_only: bool, after: FlowPlace | None, limit: int
    ) -> tuple[FlowPage, WallTime]:
        """See FlowStore."""
        start = f"({_place(after.start, after.trace_id)}" if after is not None else "+"
        shown: list[Flow] = []
        hops, now = 0, 0
        wanted = min(limit, _LISTED_AT_ONCE)
        members = await self._link.call(
            _HOLDS, "ZRANGE", index_key(namespace), start, "-", "BYLEX", "REV", "LIMIT", 0, wanted + 1
        )
        place = None
        for member in members[:wanted]:
            place = FlowPlace(int(member[:20]), member[21:].decode())
            key = FlowKey(namespace, place.trace_id)
            read, fields = await self._function("read", key)
            now = int(read)
            with _checked():
                flow = read_flow(key, fields) if fields else None
            if flow is None or flow.start != place.start or (open_only and not flow.open):
                continue
            shown.append(flow)
            hops += len(flow.hops)
            if hops > HOPS_PER_PAGE:
                break
        if not now:
            read, _ = await self._function("read", FlowKey(namespace, "0" * 32))
            now = int(read)
        last = members and place is not None and members[-1] == _place(place.start, place.trace_id).encode()
        return FlowPage(tuple(shown), None if last else place), now

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See FlowStore. While somebody listens, what other replicas change is heard, too.

        Each replica's changes come in their order; those of several replicas as they arrive. Changes that were missed
        while the server could not be reached are not made up for.
        """
        end = self._listeners.add(listener)
        self._subscribers += 1
        if self._subscription is None:
            self._subscription = Subscription(
                self._url, [self._channel], self._clock, heard=self._heard, joined=_nothing, lost=lambda: None
            )

        def end_once() -> None:
            nonlocal end
            end()
            end = _again
            self._subscribers -= 1
            if not self._subscribers and self._subscription is not None:
                self._keep(asyncio.ensure_future(self._subscription.close()))
                self._subscription = None

        def _again() -> None:
            self._subscribers += 1  # ended before; nothing changes

        return end_once

    async def sweep(self, limit: int) -> int:
        """See FlowStore. The server forgets flows by itself; what is swept is the list of them."""
        await self._link.call(_HOLDS, "FCALL", f"tidegate_flow_beat_{FLOWS.version}", 1, BEAT_KEY)
        await self._give_back()
        swept = 0
        for name in await self._link.call(_HOLDS, "SMEMBERS", NAMESPACES):
            swept += await self._sweep(name.decode(), limit - swept)
        return swept

    def healthy(self) -> bool:
        """See FlowStore."""
        return self._link.healthy()

    async def close(self) -> None:
        """See FlowStore. The link is closed by whoever opened it."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None
        if self._ended:
            await asyncio.wait(self._ended, timeout=1.0)

    async def _function(self, name: str, key: FlowKey, *words: str | int) -> Any:
        head = ("FCALL", f"tidegate_flow_{name}_{FLOWS.version}", 1, flow_key(key))
        who = (key.namespace, key.trace_id, self._origin, "" if self._now is None else str(self._now()), self._channel)
        return await self._link.call(_HOLDS, *head, *who, *words)

    def _refused(self, ask: HopAsk, answer: Sequence[Any], *, count: bool) -> Refused | Misused:
        if answer[0] == b"misused":
            return _BAD_REQUEST_ID
        refused = read_refusal(ask, answer)
        if count:
            self._listeners.tell(FlowEvent(EventKind.REFUSED, ask.key, ask=ask, refusal=refused.refusal))
            self._send("PUBLISH", self._channel, refusal_event(ask, refused.refusal, self._origin))
        return refused

    def _list(self, ask: HopAsk, start: WallTime) -> None:
        """Put a new flow on the list, right behind its grant and without waiting for it."""
        index, lasts = index_key(ask.key.namespace), (ask.limits.bounded().timeout + ask.state_ttl) // SECOND + 60
        self._send("ZADD", index, 0, _place(start, ask.key.trace_id))
        self._send("EXPIRE", index, lasts, "NX")
        self._send("EXPIRE", index, lasts, "GT")
        self._send("SADD", NAMESPACES, ask.key.namespace)

    def _send(self, *words: str | int) -> None:
        self._keep(asyncio.ensure_future(self._quietly(*words)))

    async def _quietly(self, *words: str | int) -> None:
        with contextlib.suppress(StoreUnavailable):  # nobody's answer depends on it
            await self._link.call(_HOLDS, *words)

    def _keep(self, task: "asyncio.Future[Any]") -> None:
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)

    def _owe(self, key: FlowKey, hop_id: str) -> None:
        if len(self._owed) < _OWED_KEPT:
            self._owed[key, hop_id] = None

    async def _give_back(self) -> None:
        for key, hop_id in tuple(self._owed):
            await self.cancel(key, hop_id)
            del self._owed[key, hop_id]

    async def _sweep(self, namespace: str, limit: int) -> int:
        """Look at the next flows of the list, and take off those that are gone."""
        index = index_key(namespace)
        after = self._cursors.get(namespace, "-")
        members = await self._link.call(_HOLDS, "ZRANGE", index, after, "+", "BYLEX", "LIMIT", 0, min(limit, 100))
        self._cursors[namespace] = f"({members[-1].decode()}" if members else "-"
        swept = 0
        for member in members:
            key = FlowKey(namespace, member[21:].decode())
            if not await self._function("forget", key):
                continue
            if await self._link.call(_HOLDS, "ZREM", index, member):
                swept += 1
                self._listeners.tell(FlowEvent(EventKind.FORGOTTEN, key))
        return swept

    def _heard(self, message: bytes) -> None:
        try:
            event = read_event(message, self._origin)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("flows: an event that cannot be read (%s)", type(error).__name__)
            return
        if event is not None:
            self._listeners.tell(event)


def _place(start: WallTime, trace_id: str) -> str:
    return f"{start:020d}:{trace_id}"


async def _nothing() -> None:
    pass


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """What cannot be read as the answer it should be is no answer."""
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StoreUnavailable(_HOLDS) from error
