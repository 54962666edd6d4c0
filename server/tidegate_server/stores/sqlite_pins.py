"""The embedded store of pins: SQLite in `stateDirectory`/managed-route-pins (§5 and §12 of the contract).

One thread writes: whatever waits becomes one transaction and one fsync, and is answered after it. One thread reads
what is not cached. The event loop does neither, and the hot path (`peek`) is a dict look-up.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar, cast

import apsw

from tidegate_server.core.model import CorruptPin, Pin, StoredPin, WallTime
from tidegate_server.core.pins import PinCodec
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import PinCensus, PinFilter, PinPage
from tidegate_server.stores.batch_thread import BatchThread
from tidegate_server.stores.owned_files import FileSystemOf, OwnedDirectory, file_system_of
from tidegate_server.stores.pin_cache import PinCache
from tidegate_server.stores.pin_rows import PinRows, Retirement
from tidegate_server.stores.sql import migrations
from tidegate_server.stores.sqlite_home import Schema, SqliteHome, in_transaction

DIRECTORY = "managed-route-pins"
CACHE_SIZE = 131_072
"""Pins kept in memory by default: some 40 MB when full (tests/bench/pins.py measures it)."""

HOLDS = "pins"
SCHEMA = Schema(HOLDS, 0x54475031, migrations("pins"))  # "TGP1"
_ROWS_AT_ONCE = 256  # of a list or a bulk: about a millisecond, so that others get their turn
_CORRUPT_KEPT = 1000
_CORRUPT_TOLD = 20

_PROBLEMS = (
    (apsw.FullError, "the disk is full"),
    (apsw.ReadOnlyError, "the disk is read-only"),
    (apsw.BusyError, "another program holds the database"),
    (apsw.CorruptError, "a page of the database is damaged; restore a backup"),
    (StoreUnavailable, "its files are not as they were opened"),
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
_Work = Callable[[apsw.Connection], object]


class SqlitePinStore:
    """A PinStore in a directory of its own. Made by `open`, on the event loop that uses it."""

    def __init__(self, home: SqliteHome, connection: apsw.Connection, codec: PinCodec, cache_size: int) -> None:
        self._home = home
        self._rows = PinRows(codec)
        self._codec = codec
        self._cache = PinCache(cache_size)
        self._retirements = 0
        self._corrupt: dict[bytes, None] = {}
        self._problems: dict[str, str] = {}
        self._closed = False
        self._walks = asyncio.Lock()
        self._write, self._read = connection, home.connect(read_only=True)
        failure = partial(StoreUnavailable, "pins")
        self._writer = BatchThread[_Work, object](
            "pins-writer", self._write_batch, failure=failure, after=self._fold, idle=self._heal
        )
        self._reader = BatchThread[_Work, object]("pins-reader", self._read_batch, failure=failure, idle=self._look)

    @classmethod
    async def open(
        cls,
        state: OwnedDirectory,
        key: bytes,
        *,
        cache_size: int = CACHE_SIZE,
        file_system: FileSystemOf = file_system_of,
    ) -> Self:
        """The pins in `state`, sealed under `key`. UnsafeState, with nothing changed, unless all is as it was left."""
        codec = PinCodec(key)
        opening = partial(
            SqliteHome.open, state, DIRECTORY, SCHEMA, key_check=codec.check_value, file_system=file_system
        )
        return cls(*await asyncio.to_thread(opening), codec, cache_size)

    async def get(self, pin_id: bytes) -> StoredPin | None:
        """See PinStore."""
        if (cached := self.peek(pin_id)) is not None:
            return cached
        if pin_id in self._corrupt and not self._home.replaced:
            return CorruptPin(pin_id)
        before = self._retirements
        stored = await self._query(partial(self._rows.find, pin_id=pin_id))
        self._learn(stored, before)
        return stored

    def peek(self, pin_id: bytes) -> Pin | None:
        """See PinStore."""
        return None if self._home.replaced else self._cache.get(pin_id)

    async def create(self, pin: Pin) -> tuple[StoredPin, bool]:
        """See PinStore."""
        record, checksum = self._codec.seal(pin)
        before = self._retirements
        work = partial(self._rows.create, pin=pin, record=record, checksum=checksum)
        stored, created = await self._commit(work)
        self._learn(stored, before)
        return stored, created

    async def list(self, which: PinFilter, *, after: bytes, limit: int) -> PinPage:
        """See PinStore."""
        if which.pin_id:
            found = await self.get(which.pin_id) if which.pin_id > after else None
            return PinPage((found,) if found is not None and which.matches(found) else (), b"")
        work = partial(self._rows.page, which=which, after=after, limit=limit, rows=max(_ROWS_AT_ONCE, limit))
        return await self._query(work)

    async def retire(self, which: PinFilter, *, who: str, when: WallTime, why: str, dry_run: bool) -> int:
        """See PinStore."""
        after, retired = b"", 0
        while True:
            page = await self.list(which, after=after, limit=_ROWS_AT_ONCE)
            pins = [pin for pin in page.pins if isinstance(pin, Pin) and not pin.retired]
            if pins and not dry_run:
                # Shielded: what is committed must also reach the cache, whoever stopped waiting for it.
                retired += await asyncio.shield(self._retire(pins, Retirement(who, when, why)))
            elif pins:
                retired += len(pins)
            if not page.next_after:
                return retired
            after = page.next_after

    async def verify(self) -> PinCensus:
        """See PinStore."""
        census = await self._walk(self._rows.census)
        self._note("read in full", None)
        for pin_id in census.corrupt:
            self._learn(CorruptPin(pin_id), self._retirements)
        return census

    async def fingerprints(self) -> Mapping[tuple[str, str, str, str], int]:
        """See PinStore."""
        return await self._walk(self._rows.fingerprints)

    def warnings(self) -> Sequence[str]:
        """See PinStore."""
        warnings = [f"pins cannot be {what}: {problem}" for what, problem in sorted(self._problems.items())]
        if self._home.replaced:
            warnings.append("the files of the pins were replaced while the server runs; stop it, and find out by whom")
        corrupt = islice(self._corrupt, _CORRUPT_TOLD)
        return warnings + [f"the pin {pin_id.hex()} is corrupt; its worker is refused" for pin_id in corrupt]

    def healthy(self) -> bool:
        """See PinStore."""
        return not self._home.replaced and not self._problems.keys() & {"stored", "read"}

    async def backup(self, to: Path) -> None:
        """Copy the pins, as they stand at one moment, into the new directory `to` (docs/backup.md)."""
        try:
            await asyncio.to_thread(self._home.backup, to)
        except (OSError, apsw.Error) as error:
            _log.warning("the backup to %s failed: %s", to, error)
            raise StoreUnavailable("pins") from error

    async def close(self) -> None:
        """See PinStore."""
        if self._home.forked or self._closed:
            return
        self._closed = True
        await self._writer.close()
        await self._reader.close()
        self._read.close()
        await asyncio.to_thread(self._home.close, self._write)

    async def _retire(self, pins: Sequence[Pin], retirement: Retirement) -> int:
        # Counted before and after: a read that overlaps either count is not cached, it may be older than the tombstone.
        self._retirements += 1
        try:
            tombstones = await self._commit(partial(self._rows.retire, pins=pins, retirement=retirement))
        except StoreUnavailable:
            self._cache.clear()  # whether it was committed is not known
            raise
        finally:
            self._retirements += 1
        for tombstone in tombstones:
            self._cache.put(tombstone)
        return len(tombstones)

    def _learn(self, stored: StoredPin | None, retirements_before: int) -> None:
        """Keep a positive answer; remember and tell a corrupt one."""
        if isinstance(stored, Pin):
            if self._retirements == retirements_before and not self._home.replaced:
                self._cache.put(stored)
        elif stored is not None and stored.pin_id not in self._corrupt and len(self._corrupt) < _CORRUPT_KEPT:
            self._corrupt[stored.pin_id] = None
            _log.error("the pin %s is corrupt; its worker is refused (PIN_CORRUPT)", stored.pin_id.hex())

    async def _walk(self, work: Callable[[apsw.Connection], T]) -> T:
        """Read everything, on a thread and a connection for it alone, one walk at a time.

        The walk sees the pins of one moment; until it ends the write-ahead log cannot start again.
        """
        async with self._walks:
            (answer,) = await asyncio.to_thread(self._walk_all, work)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _walk_all(self, work: Callable[[apsw.Connection], T]) -> Sequence[T | Exception]:
        def walk(jobs: Sequence[Callable[[apsw.Connection], T]]) -> Sequence[T]:
            self._home.check()
            connection = self._home.connect(read_only=True)
            try:
                return in_transaction(connection, "BEGIN", jobs)
            finally:
                connection.close()

        return self._attempt("read", walk, [work])

    def _write_batch(self, jobs: Sequence[_Work]) -> Sequence[object]:
        commit = partial(self._home.commit, self._write)
        return self._attempt("stored", commit, jobs, alone=commit)

    def _read_batch(self, jobs: Sequence[_Work]) -> Sequence[object]:
        def together(jobs: Sequence[_Work]) -> Sequence[object]:
            self._home.check()
            return in_transaction(self._read, "BEGIN", jobs)

        # SQLite ends a transaction that met a damaged page with an error, even if the job got over it: alone, without.
        return self._attempt("read", together, jobs, alone=lambda jobs: [job(self._read) for job in jobs])

    def _attempt(
        self,
        what: str,
        do: Callable[[Sequence[Callable[[apsw.Connection], T]]], Sequence[T]],
        jobs: Sequence[Callable[[apsw.Connection], T]],
        alone: Callable[[Sequence[Callable[[apsw.Connection], T]]], Sequence[T]] | None = None,
    ) -> Sequence[T | Exception]:
        """Do the jobs; note what went wrong, or that it is over. Never raises an error of the disk.

        `alone`: how to do one when all together met a damaged page, which must not refuse those who have no part in it.
        """
        written = self._write.total_changes() if what == "stored" else 0
        try:
            answers = do(jobs)
        except (OSError, apsw.Error, StoreUnavailable) as error:
            if not isinstance(error, apsw.CorruptError):
                self._note(what, error)
                return [StoreUnavailable("pins") for _ in jobs]
            if alone is not None:
                return [answer for job in jobs for answer in self._attempt(what, alone, [job])]
            self._note("read in full", error)
            self._touch()
            return [StoreUnavailable("pins") for _ in jobs]
        if what != "stored" or self._write.total_changes() != written:
            self._note(what, None)  # a transaction that wrote nothing tells nothing of the disk
        return answers

    def _note(self, what: str, error: Exception | None) -> None:
        if error is None:
            if self._problems.pop(what, None) is not None:
                _log.warning("pins can be %s again", what)
            return
        problem = next((words for kind, words in _PROBLEMS if isinstance(error, kind)), "the disk fails")
        if self._problems.get(what) != problem:
            self._problems[what] = problem
            _log.error("pins cannot be %s: %s (%s)", what, problem, error)

    def _fold(self) -> None:
        """After each batch, when its callers have their answers: keep the write-ahead log short."""
        self._note("checkpointed", None if self._home.checkpoint_if_due(self._write) else OSError("checkpoint failed"))

    def _heal(self) -> None:
        """When nothing is to be written: see whether the disk takes writes again. Refused callers may never try."""
        if "stored" in self._problems and not self._home.replaced:
            self._write_batch([self._home.beat])
        self._fold()

    def _look(self) -> None:
        if "read" in self._problems and not self._home.replaced and self._touch():
            self._read_batch([self._rows.nothing])

    def _touch(self) -> bool:
        """Whether the disk can be read at all. SQLite says "corrupt" for a page that the disk does not give, too."""
        try:
            self._home.touch()
        except OSError as error:
            self._note("read", error)
            return False
        return True

    async def _commit(self, work: Callable[[apsw.Connection], T]) -> T:
        return cast("T", await self._writer.submit(work))

    async def _query(self, work: Callable[[apsw.Connection], T]) -> T:
        return cast("T", await self._reader.submit(work))
