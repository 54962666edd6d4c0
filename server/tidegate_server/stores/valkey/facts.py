"""Facts in Valkey or Redis, pushed to every replica (§3 and §12 of the contract).

The table on the server is changed by functions alone, each change has a version, and every replica holds a copy that it
has followed without a gap. A copy that may have missed a change is not served: what needs a fact then is
UNAVAILABLE until the table was read anew. Deciding reads the copy and waits for nobody.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

from tidegate_server.core.facts import FactGroup, FactTable
from tidegate_server.core.freshness import is_forgotten
from tidegate_server.core.model import SECOND, Balance, Fact, Instant, Nanos, ObservationResult, Quota
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock, FactFilter
from tidegate_server.stores.functions import library
from tidegate_server.stores.retraction import is_retracted
from tidegate_server.stores.valkey.fact_words import (
    MICROSECOND,
    ServerClock,
    field_of,
    key_of,
    put_words,
    read_fact,
)
from tidegate_server.stores.valkey.link import BEAT_EVERY, Link, channel
from tidegate_server.stores.valkey.listener import Listener

TABLE = "tidegate:{facts}"

GAP_SECONDS = 0.05
"""How long a change may overtake an older one before that counts as missed."""

SEEN_SECONDS = 1.0
"""How long one who put facts waits to see them in the copy."""

READ_SECONDS = 2.0
SWEEP_EVERY: Nanos = 60 * SECOND

FACTS = library("facts")
_HOLDS = "facts"
_log = logging.getLogger(__name__)


class _Unread(Mapping[tuple[str, str], FactGroup]):
    """In place of a copy that may be old: whoever looks into it gets StoreUnavailable, whoever does not needs none."""

    def _fail(self) -> NoReturn:
        raise StoreUnavailable(_HOLDS)

    def __getitem__(self, key: tuple[str, str]) -> FactGroup:
        self._fail()

    def get(self, key: object, default: object = None) -> NoReturn:
        self._fail()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self._fail()

    def __len__(self) -> int:
        raise StoreUnavailable(_HOLDS)


UNREAD = _Unread()


class ValkeyFactStore:
    """The port `FactStore` over one link. Made by `open`, on the event loop that uses it."""

    def __init__(self, link: Link, url: str, clock: Clock, limits: FreshnessLimits) -> None:
        self._link = link
        self._clock = clock
        self._limits = limits
        self._server_clock = ServerClock()
        self._table = FactTable()
        self._table_id = ""
        self._version = -1
        self._whole = False
        self._subscribed = False
        self._losses = 0
        self._ahead: dict[int, Sequence[tuple[str, str]]] = {}
        self._subscribers: list[Callable[[frozenset[str]], None]] = []
        self._moved = asyncio.Event()
        self._swept = clock.monotonic()
        self._reading: asyncio.Task[None] | None = None
        self._channel = channel(url, "fact-changes")
        self._listener = Listener(url, [self._channel], clock, heard=self._heard, joined=self._joined, lost=self._lost)
        self._looking = asyncio.ensure_future(self._look())

    @classmethod
    async def open(cls, link: Link, url: str, clock: Clock, limits: FreshnessLimits) -> Self:
        """The facts of that server; read already, if it can be reached now."""
        store = cls(link, url, clock, limits)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while not store._whole:  # noqa: ASYNC110 - at the start alone
                    await asyncio.sleep(0.005)
        return store

    def groups(self) -> Mapping[tuple[str, str], FactGroup]:
        """See FactStore. Nothing can be read from the answer while the copy may be old."""
        return self._table.groups if self._whole else UNREAD

    def facts(self, providers: frozenset[str]) -> Sequence[Fact]:
        """See FactStore."""
        self._check_whole()
        return self._table.facts(providers)

    async def put(self, facts: Sequence[Fact], retract: FactFilter | None = None) -> Sequence[ObservationResult]:
        """See FactStore."""
        if retract is not None:
            self._check_whole()  # what it takes away is looked up in the copy
        doomed = self._table.taken_with(lambda f: is_retracted(f, retract)) if retract is not None else []
        gone = [[field_of(fact.key), fact.identity, fact.collector, -1] for fact in doomed]
        if not self._server_clock.is_known:
            raise StoreUnavailable(_HOLDS)
        now = self._clock.monotonic()
        items = [put_words(fact, now, self._server_clock) for fact in facts]
        seen, results = await self._function("change", self._channel, json.dumps(gone), json.dumps(items))
        await self._until_seen(seen)
        taken = (ObservationResult.SUPERSEDED, ObservationResult.ACCEPTED)
        return [taken[result] for result in results]

    def relimit(self, limits: FreshnessLimits) -> None:
        """See FactStore."""
        self._limits = limits
        self._table.relimit(limits)
        self._tell(frozenset(fact.key.provider for fact in self._table.facts()))

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """See FactStore."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def healthy(self) -> bool:
        """See FactStore."""
        return self._whole and self._link.healthy()

    async def close(self) -> None:
        """Let go of the connection that listens. The link is closed by whoever opened it."""
        await self._listener.close()
        for task in (self._looking, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _function(self, name: str, *words: str, seconds: float | None = None) -> Any:
        head = ("FCALL", f"tidegate_facts_{name}_{FACTS.version}", 1, TABLE)
        return await self._link.call(_HOLDS, *head, *words, seconds=seconds)

    # Following the table ------------------------------------------------------------------------------------------

    async def _joined(self) -> None:
        self._subscribed = True
        self._read_anew()

    def _lost(self) -> None:
        self._subscribed = False
        self._losses += 1
        self._distrust("the subscription ended")

    def _distrust(self, why: str) -> None:
        """The copy may be old from now on."""
        if self._whole:
            _log.warning("facts: not served until they were read anew: %s", why)
        self._whole = False

    def _read_anew(self) -> None:
        if self._subscribed and (self._reading is None or self._reading.done()):
            self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        """Read the whole table, then go on from its version. While it runs, changes are kept for after it."""
        self._ahead.clear()
        losses, asked = self._losses, self._clock.monotonic()
        try:
            seen, fields = await self._function("read", seconds=READ_SECONDS)
            self._take_over(seen, fields, asked)
        except StoreUnavailable:
            return  # the next look tries again
        except (ValueError, KeyError, TypeError) as error:
            _log.error("facts: the table cannot be read (%s)", type(error).__name__)
            return
        # A subscription that was lost and made again meanwhile may have missed what came after the table was read.
        self._whole = self._subscribed and losses == self._losses
        self._follow()

    def _take_over(self, seen: Sequence[Any], fields: Sequence[bytes], asked: Instant) -> None:
        """Let the copy be what was read."""
        before = frozenset(fact.key.provider for fact in self._table.facts())
        self._server_clock.saw(asked, int(seen[2]), self._clock.monotonic())
        self._table = FactTable()
        for field, packed in zip(fields[::2], fields[1::2], strict=True):
            if field.startswith(b"f:"):
                self._take(field.decode(), packed.decode())
        self._table_id, self._version = seen[0].decode(), int(seen[1])
        self._tell(before | {fact.key.provider for fact in self._table.facts()})

    def _heard(self, message: bytes) -> None:
        try:
            table, version, _, fields = json.loads(message)
            change = [(str(field), str(packed)) for field, packed in fields]
        except (ValueError, TypeError) as error:
            self._distrust(f"a change that cannot be read ({type(error).__name__})")
            self._read_anew()
            return
        if self._whole and table != self._table_id:
            if self._version:
                self._distrust("the table is another one")
                self._read_anew()
            self._table_id = table
        self._ahead[int(version)] = change
        self._follow()
        if self._ahead and self._whole:
            asyncio.get_running_loop().call_later(GAP_SECONDS, self._missed, self._version)

    def _follow(self) -> None:
        """Apply every change that comes next."""
        if not self._whole:
            return
        for version in [v for v in self._ahead if v <= self._version]:
            del self._ahead[version]
        while (change := self._ahead.pop(self._version + 1, None)) is not None:
            touched = set()
            for field, packed in change:
                touched.add(self._take(field, packed))
            self._version += 1
            self._tell(frozenset(touched))
        self._moved.set()
        self._moved = asyncio.Event()

    def _missed(self, version: int) -> None:
        """After a while: is what came too early still waiting for the same change?"""
        if self._ahead and self._version == version and self._whole:
            self._distrust("a change was missed")
            self._read_anew()

    def _take(self, field: str, packed: str) -> str:
        """Change one fact of the copy; return its provider."""
        key = key_of(field)
        if packed:
            self._table.replace(read_fact(field, packed, self._server_clock, self._limits))
        else:
            self._table.discard(key)
        return key.provider

    async def _until_seen(self, seen: Sequence[Any]) -> None:
        """Wait until the copy holds what was just changed; not for long, and not at all for a copy that is not served.

        What was changed is stored in any case.
        """
        version = int(seen[1])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_SECONDS):
                while self._whole and self._version < version:
                    await self._moved.wait()

    async def _look(self) -> None:
        """Compare versions now and then, for ever: a connection that has silently died shows here."""
        while True:
            await self._clock.sleep(BEAT_EVERY)
            asked = self._clock.monotonic()
            try:
                table, version, time = await self._function("look")
                self._server_clock.saw(asked, int(time), self._clock.monotonic())
            except (StoreUnavailable, ValueError, TypeError):
                self._distrust("the server does not answer")
                continue
            if not self._whole:
                self._read_anew()
            elif (table.decode(), int(version)) != (self._table_id, self._version):
                asyncio.get_running_loop().call_later(GAP_SECONDS, self._behind, table.decode(), int(version))
            await self._sweep()

    def _behind(self, table: str, version: int) -> None:
        if self._whole and (table != self._table_id or self._version < version):
            self._distrust("the table has moved on unseen")
            self._read_anew()

    async def _sweep(self) -> None:
        """Take away what is forgotten (§3.7), unless it was renewed meanwhile and is younger by now."""
        now = self._clock.monotonic()
        if now - self._swept < SWEEP_EVERY or not self._whole:
            return
        self._swept = now
        old = [f for f in self._table.facts() if isinstance(f.value, Quota | Balance) and is_forgotten(f, now)]
        if old:
            gone = [[field_of(f.key), f.identity, f.collector, (now - f.captured - SECOND) // MICROSECOND] for f in old]
            with contextlib.suppress(StoreUnavailable):
                await self._function("change", self._channel, json.dumps(gone), "[]")

    def _check_whole(self) -> None:
        if not self._whole:
            raise StoreUnavailable(_HOLDS)

    def _tell(self, providers: frozenset[str]) -> None:
        for changed in tuple(self._subscribers):
            changed(providers)
