"""Pins in PostgreSQL: the shared mode's store (§5 of the contract).

A new pin costs one round trip, which all that wait at the moment share. A pin that was read is kept: it never changes,
but for its retirement, which every replica learns of within a second from the audit lines. A page that is damaged is
PostgreSQL's to find (its own checksums); a row that is not what was written fails ours.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Self

from tidegate_server.core.model import SECOND, CorruptPin, Nanos, Pin, StoredPin, WallTime
from tidegate_server.core.pins import PinCodec
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock, PinCensus, PinFilter, PinPage
from tidegate_server.stores.batches import Batches
from tidegate_server.stores.pin_cache import PinCache
from tidegate_server.stores.postgres.database import WALK_SECONDS, Database
from tidegate_server.stores.sql import queries

CACHE_SIZE = 131_072
LOOK_EVERY: Nanos = SECOND
"""How soon a retirement shows on other replicas."""

SQL = queries("postgres/pins")
_ROWS_AT_ONCE = 1_000
_CORRUPT_TOLD = 20
_HOLDS = "pins"
_log = logging.getLogger(__name__)


class PostgresPinStore:
    """A PinStore on a shared database. Made by `open`, on the event loop that uses it."""

    def __init__(self, database: Database, codec: PinCodec, clock: Clock, cache_size: int) -> None:
        self._database = database
        self._codec = codec
        self._clock = clock
        self._cache = PinCache(cache_size)
        self._corrupt: dict[bytes, None] = {}
        self._horizon: str | None = None
        self._timeline = ""
        self._looks = 0
        self._reads: Batches[bytes, StoredPin | None] = Batches(
            self._find, failure=_unavailable, seconds=database.call_seconds
        )
        self._writes: Batches[Pin, tuple[StoredPin, bool]] = Batches(
            self._create, failure=_unavailable, seconds=database.call_seconds
        )
        self._looking = asyncio.ensure_future(self._look())

    @classmethod
    async def open(cls, database: Database, key: bytes, clock: Clock, *, cache_size: int = CACHE_SIZE) -> Self:
        """The pins of `database`, sealed under `key`."""
        store = cls(database, PinCodec(key), clock, cache_size)
        with contextlib.suppress(StoreUnavailable):
            await store.look()
        return store

    async def get(self, pin_id: bytes) -> StoredPin | None:
        """See PinStore."""
        return self.peek(pin_id) or await self._reads.submit(pin_id)

    def peek(self, pin_id: bytes) -> Pin | None:
        """See PinStore."""
        return self._cache.get(pin_id)

    async def create(self, pin: Pin) -> tuple[StoredPin, bool]:
        """See PinStore."""
        return await self._writes.submit(pin)

    async def list(self, which: PinFilter, *, after: bytes, limit: int) -> PinPage:
        """See PinStore."""
        if which.pin_id:
            found = await self._reads.submit(which.pin_id) if which.pin_id > after else None
            return PinPage((found,) if found is not None and which.matches(found) else (), b"")
        rows = max(_ROWS_AT_ONCE, limit)
        matches: list[StoredPin] = []
        read = await self._page(after, rows)
        for pin in read:
            after = pin.pin_id
            if which.matches(pin):
                matches.append(pin)
                if len(matches) == limit:
                    return PinPage(tuple(matches), after)
        return PinPage(tuple(matches), after if len(read) == rows else b"")

    async def retire(self, which: PinFilter, *, who: str, when: WallTime, why: str, dry_run: bool) -> int:
        """See PinStore."""
        after, retired = b"", 0
        while True:
            page = await self.list(which, after=after, limit=_ROWS_AT_ONCE)
            pins = [pin for pin in page.pins if isinstance(pin, Pin) and not pin.retired]
            if pins and not dry_run:
                retired += await self._retire(pins, {"who": who, "at": when, "why": why})
            elif pins:
                retired += len(pins)
            if not page.next_after:
                return retired
            after = page.next_after

    async def verify(self) -> PinCensus:
        """See PinStore."""
        checked, corrupt = 0, []
        async for pin in self._walk():
            checked += 1
            if isinstance(pin, CorruptPin):
                corrupt.append(pin.pin_id)
                self._learn(pin, self._looks)
        return PinCensus(checked, tuple(corrupt))

    async def fingerprints(self) -> Mapping[tuple[str, str, str, str], int]:
        """See PinStore."""
        counts: Counter[tuple[str, str, str, str]] = Counter()
        async for pin in self._walk():
            if isinstance(pin, Pin) and not pin.retired:
                counts[pin.route, pin.candidate, pin.policy_fingerprint, pin.binding_fingerprint] += 1
        return counts

    def warnings(self) -> Sequence[str]:
        """See PinStore."""
        corrupt = [f"the pin {i.hex()} is corrupt; its worker is refused" for i in islice(self._corrupt, _CORRUPT_TOLD)]
        return [*self._database.warnings(), *corrupt]

    def healthy(self) -> bool:
        """See PinStore."""
        return self._database.healthy(_HOLDS)

    async def close(self) -> None:
        """See PinStore. The database is closed by whoever opened it."""
        self._looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._looking
        await self._reads.close()
        await self._writes.close()

    async def _find(self, pin_ids: Sequence[bytes]) -> Sequence[StoredPin | None]:
        before = self._looks
        rows = await self._database.run(_HOLDS, SQL["find"], {"pin_ids": list(set(pin_ids))})
        found = {row[0]: self._codec.open(*row) for row in rows}
        for pin in found.values():
            self._learn(pin, before)
        return [found.get(pin_id) for pin_id in pin_ids]

    async def _create(self, pins: Sequence[Pin]) -> Sequence[tuple[StoredPin, bool]]:
        before = self._looks
        first: dict[bytes, Pin] = {}
        for pin in pins:
            first.setdefault(pin.pin_id, pin)  # of equal ids in one batch the first one is the writer
        sealed = {pin_id: self._codec.seal(pin) for pin_id, pin in first.items()}
        columns = {
            "pin_ids": list(sealed),
            "records": [record for record, _ in sealed.values()],
            "checksums": [checksum for _, checksum in sealed.values()],
        }
        stored: dict[bytes, tuple[StoredPin, bool]] = {}
        for pin_id, record, checksum, ours in await self._database.run(_HOLDS, SQL["create"], columns):
            pin_now = first[pin_id] if ours else self._codec.open(pin_id, record, checksum)
            stored[pin_id] = (pin_now, ours)
            self._learn(pin_now, before)
        return [(stored[p.pin_id][0], stored[p.pin_id][1] and first[p.pin_id] is p) for p in pins]

    async def _page(self, after: bytes, limit: int) -> Sequence[StoredPin]:
        parameters = {"after": after, "limit": limit}
        return [
            self._codec.open(*row)
            for row in await self._database.run(_HOLDS, SQL["page"], parameters, seconds=WALK_SECONDS)
        ]

    async def _walk(self) -> AsyncIterator[StoredPin]:
        after = b""
        while pins := await self._page(after, _ROWS_AT_ONCE):
            for pin in pins:
                yield pin
            after = pins[-1].pin_id

    async def _retire(self, pins: Sequence[Pin], line: Mapping[str, object]) -> int:
        sealed = [self._codec.seal(pin._replace(retired=True)) for pin in pins]
        columns = {
            "pin_ids": [pin.pin_id for pin in pins],
            "records": [record for record, _ in sealed],
            "checksums": [checksum for _, checksum in sealed],
            "before": [self._codec.seal(pin)[1] for pin in pins],
        }
        try:
            rows = await self._database.run(_HOLDS, SQL["retire"], {**columns, **line}, seconds=WALK_SECONDS)
        finally:  # also when nobody knows whether it was committed
            self._looks += 1
            self._cache.drop(pin.pin_id for pin in pins)
        return len(rows)

    def _learn(self, stored: StoredPin, looks_before: int) -> None:
        """Keep a positive answer, unless a retirement may have overtaken it; remember and tell a corrupt one."""
        if isinstance(stored, Pin):
            if self._looks == looks_before and self._horizon is not None:
                self._cache.put(stored)
        elif stored.pin_id not in self._corrupt and len(self._corrupt) < _ROWS_AT_ONCE:
            self._corrupt[stored.pin_id] = None
            _log.error("the pin %s is corrupt; its worker is refused (PIN_CORRUPT)", stored.pin_id.hex())

    async def _look(self) -> None:
        """Hear of retirements by other replicas, for ever."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            with contextlib.suppress(StoreUnavailable):  # told by the database's health
                await self.look()

    async def look(self) -> None:
        """Drop from the cache what was retired anywhere since the last look."""
        parameters = {"horizon": self._horizon}
        ((horizon, timeline, retired),) = await self._database.run(_HOLDS, SQL["retired_since"], parameters)
        if timeline != self._timeline:
            self._cache.clear()
        self._horizon, self._timeline = horizon, timeline
        self._looks += 1  # a read that began before this may be older than a tombstone; it is not kept
        self._cache.drop(retired)


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable(_HOLDS)
