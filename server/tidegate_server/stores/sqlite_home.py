"""One SQLite database in a directory of its own: opened only when it is safe, whole and ours (§5 of the contract).

Everything that can be known without SQLite is checked first, on open descriptors; then SQLite opens the files, and what
it holds is compared with what was checked. A start that fails changes nothing: SQLite is told never to fold the
write-ahead log into the database when a connection closes. So that log is always there while the marker says "open",
and a missing one is told from one that was never needed.
"""

import os
import secrets
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import apsw

from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.stores.marker import MARKER, Marker
from tidegate_server.stores.owned_files import (
    FileSystemOf,
    FileWatch,
    OwnedDirectory,
    file_system_of,
    held_files,
    unsafe,
)

DATABASE = "data.sqlite3"
WAL = f"{DATABASE}-wal"
SHM = f"{DATABASE}-shm"
_DRAFT = "draft.sqlite3"  # a database that is being made; its name is its state

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_WAL_HEADER = 32
_WAL_MAGIC = (0x377F0682, 0x377F0683)
_BUSY_MILLISECONDS = 5000
_CHECKPOINT_PAGES = 1000
_WAL_PAGES_AT_MOST = 65_536
_WAL_BYTES_KEPT = 64 << 20
_RESTORE = "Bring the whole directory back from a backup (docs/backup.md)."
_RESTORE_OR_FORGET = f"{_RESTORE} To give up what it held for good, remove the .made file, too."

T = TypeVar("T")


class Schema(NamedTuple):
    """What a database holds, the number that marks its file, and the scripts that lift it from version to version."""

    holds: str
    application_id: int
    migrations: Sequence[str]


class SqliteHome:
    """The directory, its lock, its marker, and the way to connections. Made by `open`."""

    def __init__(self, directory: OwnedDirectory, schema: Schema, marker: Marker, database: int) -> None:
        self.directory = directory
        self.replaced = False
        self._schema = schema
        self._marker = marker
        # Held until the end: to close any descriptor of the file would drop SQLite's locks on it (fcntl's oldest trap).
        self._database = database
        self._watch = FileWatch(directory, ())
        self._process = os.getpid()
        self._wal_pages = 0

    @classmethod
    def open(
        cls,
        state: OwnedDirectory,
        name: str,
        schema: Schema,
        *,
        key_check: bytes = b"",
        file_system: FileSystemOf = file_system_of,
    ) -> tuple[Self, apsw.Connection]:
        """The database in `state`/`name` and the one connection that writes to it; made when it never was there.

        `key_check` recognises the key that the content is sealed under. UnsafeState, with nothing changed, when
        anything is not as this server left it.
        """
        witness = f"{name}.made"
        was_made = state.exists(witness)
        if was_made and not state.exists(name):
            raise unsafe(state.path / name, f"it is lost: {witness} says that it was there", _RESTORE_OR_FORGET)
        directory = state.subdirectory(name)
        home = None
        try:
            directory.refuse_remote(file_system)
            directory.lock()
            directory.check_entries((DATABASE, WAL, SHM, MARKER))
            home = cls(directory, schema, *_checked_files(directory, schema, key_check, was_made=was_made))
            connection = home._first_connection(key_check)
            if not was_made:  # outside of what it vouches for, and only when all of that is there
                state.write_file(witness, b"")
            return home, connection
        except UnsafeState:
            (home or directory).close()
            raise
        except (OSError, apsw.Error) as error:
            (home or directory).close()
            what = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
            raise unsafe(directory.path, f"it cannot be opened ({what})", "Find out why, and start again.") from error

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened it: it owns none of this, and must not even close it."""
        return os.getpid() != self._process

    def connect(self, *, read_only: bool = False) -> apsw.Connection:
        """Another connection: full durability, no checkpoint of its own accord, nothing folded in when it closes."""
        return _connect(self.directory.path / DATABASE, read_only=read_only)

    def check(self) -> None:
        """StoreUnavailable, from now on, when another file took the place of one of ours. A few system calls."""
        if not self.replaced and not self._watch.unchanged():
            self.replaced = True
        if self.replaced or self.forked:
            raise StoreUnavailable(self._schema.holds)

    def touch(self) -> None:
        """Read a little of the database past SQLite. OSError when the disk does not give it."""
        os.pread(self._database, _HEADER, 0)

    def commit(self, connection: apsw.Connection, jobs: Sequence[Callable[[apsw.Connection], T]]) -> list[T]:
        """Do all jobs in one transaction; durable on return. An error of any undoes all.

        StoreUnavailable as `check` has it, also when the files were replaced meanwhile, or when the write-ahead log
        has outgrown its bound because the disk takes no checkpoint.
        """
        self.check()
        if self._wal_pages > _WAL_PAGES_AT_MOST and not self.checkpoint(connection):
            raise StoreUnavailable(self._schema.holds)
        if not self._marker.is_open:
            # In this order: first a log that is on the disk, then the word that there must be one, then the jobs.
            self.beat(connection)
            self._marker.set_open(True)
        answers = in_transaction(connection, "BEGIN IMMEDIATE", jobs)
        self.check()
        return answers

    @staticmethod
    def beat(connection: apsw.Connection) -> None:
        """Write something that means nothing: whether the disk takes writes. A job for `commit`."""
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'heartbeat'")

    def checkpoint_if_due(self, connection: apsw.Connection) -> bool:
        """Fold the log into the database when it is long; False when the disk does not take it."""
        return self._wal_pages < _CHECKPOINT_PAGES or self.checkpoint(connection)

    def checkpoint(self, connection: apsw.Connection) -> bool:
        """Fold what can be folded without waiting for readers; False when the disk does not take it."""
        try:
            pages, folded = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            return False
        if pages == folded:
            self._wal_pages = 0  # the next write starts the log again
        return True

    def backup(self, to: Path) -> None:
        """See `backup`: of this database, while it is in use."""
        self.check()
        backup(self.directory, self._marker, self._schema.holds, to)

    def close(self, connection: apsw.Connection | None = None) -> None:
        """Let go. With the writing connection (all others closed) the log is folded in and the marker says "clean"."""
        if self.forked:
            return
        if connection is not None:
            self._finish(connection)
            connection.close()
        self._marker.close()
        os.close(self._database)
        self.directory.close()

    def _finish(self, connection: apsw.Connection) -> None:
        """Best effort: what does not succeed here is done at the next start, from the log."""
        try:
            self.check()
            pages, folded = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
            if pages == folded and self._marker.is_open:
                self._marker.set_open(False)  # before the log goes: "open" without a log would be an alarm
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (OSError, apsw.Error, StoreUnavailable):
            pass

    def _first_connection(self, key_check: bytes) -> apsw.Connection:
        connection = self.connect()
        try:
            self._check_content(connection, key_check)
            self._check_held()
            connection.set_wal_hook(self._count_pages)
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _count_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _check_content(self, connection: apsw.Connection, key_check: bytes) -> None:
        """What only SQLite can tell."""
        path = self.directory.path / DATABASE
        try:
            with connection:  # one view for all of it
                version = connection.pragma("user_version")
                meta = dict(connection.execute("SELECT name, value FROM meta"))
                pages = connection.pragma("page_count")
        except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
            raise unsafe(path, "it is damaged", _RESTORE) from error
        _check_version(path, version, self._schema)
        if meta.get("store") != self._marker.store:
            raise unsafe(path, "it is not the database that the marker beside it belongs to", _RESTORE)
        if meta.get("key_check") != key_check.hex():
            raise unsafe(path, "its content is sealed under another key", "Bring back the key that belongs to it.")
        room = sum(self.directory.size(name) for name in (DATABASE, WAL))
        if room < pages * connection.pragma("page_size"):
            raise unsafe(path, "it is truncated", _RESTORE)

    def _check_held(self) -> None:
        """Whether SQLite opened just the files that were checked; from here on the watch tells."""
        self._watch = FileWatch(self.directory, (DATABASE, WAL, SHM, MARKER))
        held = held_files()
        for name, count in ((DATABASE, 2), (WAL, 1), (SHM, 1)):  # the database by us, too: that one was checked
            identity = self._watch.files[name]
            if identity is None or held[identity] < count:
                raise unsafe(self.directory.path / name, "it was replaced while it was being opened", _RESTORE)

    def _migrate(self, connection: apsw.Connection) -> None:
        version = connection.pragma("user_version")
        if version == len(self._schema.migrations):
            return

        def lift(c: apsw.Connection) -> None:
            for script in self._schema.migrations[version:]:
                c.execute(script)
            c.pragma("user_version", len(self._schema.migrations))

        self.commit(connection, [lift])
        self.checkpoint(connection)


def in_transaction(connection: apsw.Connection, begin: str, jobs: Sequence[Callable[[apsw.Connection], T]]) -> list[T]:
    """Do all jobs between `begin` and COMMIT; whatever is raised, also by COMMIT, leaves nothing of them."""
    connection.execute(begin)
    try:
        answers = [job(connection) for job in jobs]
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answers


def backup(directory: OwnedDirectory, marker: Marker, holds: str, to: Path) -> None:
    """Copy a database that may be in use into the new directory `to`, ready to take the place of the original.

    One consistent view, checked before it counts: the marker comes last. OSError or apsw.Error when it cannot be
    done, FileExistsError when `to` exists.
    """
    to.mkdir(mode=0o700)
    copy = OwnedDirectory.open(to, make=False)
    try:
        os.close(copy.open_file(DATABASE, make=True))
        source, target = _connect(directory.path / DATABASE, read_only=True), apsw.Connection(str(copy.path / DATABASE))
        try:
            with target.backup("main", source, "main") as copying:
                copying.step(-1)
            target.pragma("journal_mode", "delete")  # no log beside the copy: it is whole by itself
            if target.pragma("integrity_check") != "ok":
                raise apsw.CorruptError("the copy is damaged")
            target.pragma("journal_mode", "wal")
        finally:
            target.close()
            source.close()
        descriptor = copy.open_file(DATABASE)
        os.fsync(descriptor)
        os.close(descriptor)
        copy.remove((WAL, SHM))
        Marker.make(copy, holds, marker.store, marker.key_check)
    finally:
        copy.close()


def _connect(path: Path, *, read_only: bool) -> apsw.Connection:
    mode = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(str(path), flags=mode | apsw.SQLITE_OPEN_NOFOLLOW)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.set_busy_timeout(_BUSY_MILLISECONDS)
        connection.pragma("synchronous", "full")  # WAL alone makes commits whole; FULL makes them survive the power
        connection.pragma("fullfsync", True)  # macOS: fsync there stops at the drive's cache
        connection.pragma("cell_size_check", True)
        connection.pragma("wal_autocheckpoint", 0)  # ours come after the answers, not before
        connection.pragma("journal_size_limit", _WAL_BYTES_KEPT)
    except BaseException:
        connection.close()
        raise
    return connection


def _checked_files(
    directory: OwnedDirectory, schema: Schema, key_check: bytes, *, was_made: bool
) -> tuple[Marker, int]:
    """The marker and a descriptor of the database, when both are what this server left, or were never there."""
    marker = Marker.read(directory, schema.holds)
    if marker is None:
        strays = [name for name in (DATABASE, WAL) if directory.exists(name)]
        if strays:
            raise unsafe(
                directory.path, f"the marker is missing beside {strays[0]}: the directory is not whole", _RESTORE
            )
        if was_made:
            raise unsafe(directory.path, "it is empty, and it was not: its content is lost", _RESTORE_OR_FORGET)
        _make(directory, schema, key_check)
        marker = Marker.read(directory, schema.holds)
        assert marker is not None
    try:
        if marker.key_check != key_check:
            raise unsafe(
                directory.path,
                f"its {schema.holds} are sealed under another key than the one given",
                "Bring back the key that belongs to them; a new key cannot read them.",
            )
        if not directory.exists(DATABASE):
            if not directory.exists(_DRAFT):
                raise unsafe(directory.path / DATABASE, "it is lost: the marker says that it was there", _RESTORE)
            directory.rename(_DRAFT, DATABASE)  # a first start that died between its last two steps
        database = directory.open_file(DATABASE)
        try:
            has_log = _check_log(directory, marker)
            _check_header(directory.path / DATABASE, database, schema, whole=not has_log)
        except BaseException:
            os.close(database)
            raise
    except BaseException:
        marker.close()
        raise
    return marker, database


def _make(directory: OwnedDirectory, schema: Schema, key_check: bytes) -> None:
    """Make the database as a draft, then the marker, then give it its name: it is there whole or not at all."""
    directory.remove(_DRAFT + end for end in ("", "-journal", "-wal", "-shm"))
    os.close(directory.open_file(_DRAFT, make=True))
    store = secrets.token_hex(16)
    draft = apsw.Connection(str(directory.path / _DRAFT), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
    try:
        draft.pragma("synchronous", "full")
        with draft:
            draft.pragma("application_id", schema.application_id)
            draft.execute("CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value ANY) STRICT")
            draft.executemany(
                "INSERT INTO meta VALUES (?, ?)", (("store", store), ("key_check", key_check.hex()), ("heartbeat", 0))
            )
            for script in schema.migrations:
                draft.execute(script)
            draft.pragma("user_version", len(schema.migrations))
        draft.pragma("journal_mode", "wal")
    finally:
        draft.close()
    Marker.make(directory, schema.holds, store, key_check)
    directory.rename(_DRAFT, DATABASE)


def _check_log(directory: OwnedDirectory, marker: Marker) -> bool:
    """Whether there is a write-ahead log with something in it; UnsafeState when one is missing or damaged."""
    path = directory.path / WAL
    if not directory.exists(WAL):
        if not marker.is_open:
            return False
        raise unsafe(
            path,
            "the server was killed, and the write-ahead log that it left is missing: its last promises may be in it",
            f"Bring it back. If you know that it was folded in (by the sqlite3 command, say), write"
            f" `state: clean` into {directory.path / MARKER}.",
        )
    descriptor = directory.open_file(WAL, writable=False)
    try:
        header = os.read(descriptor, _WAL_HEADER)
    finally:
        os.close(descriptor)
    if not header and not marker.is_open:
        return False
    if len(header) < _WAL_HEADER or struct.unpack_from(">I", header)[0] not in _WAL_MAGIC:
        raise unsafe(path, "the write-ahead log is empty, truncated or overwritten", _RESTORE)
    return True


def _check_header(path: Path, descriptor: int, schema: Schema, *, whole: bool) -> None:
    """Judge the first page. `whole`: there is no log, so that the file must have every page that it speaks of."""
    header = os.pread(descriptor, _HEADER, 0)
    size = os.fstat(descriptor).st_size
    if not header:
        raise unsafe(path, "it is empty (zero bytes)", _RESTORE)
    if not header.strip(b"\0"):
        raise unsafe(path, "it is overwritten with NULs", _RESTORE)
    if not header.startswith(_MAGIC[: len(header)]):
        raise unsafe(path, "it is not an SQLite database", _RESTORE)
    if len(header) < _HEADER:
        raise unsafe(path, "it is truncated", _RESTORE)
    page_size, formats = struct.unpack_from(">HH", header, 16)
    pages, version, application = (struct.unpack_from(">I", header, at)[0] for at in (28, 60, 68))
    if application != schema.application_id:
        raise unsafe(path, f"it is an SQLite database, but not Tidegate's {schema.holds}", _RESTORE)
    _check_version(path, version, schema)
    if formats != 0x0202:
        raise unsafe(path, "another program took it out of its journal mode (WAL)", _RESTORE)
    if whole and size != pages * (page_size if page_size > 1 else 65_536):
        raise unsafe(path, "it is truncated", _RESTORE)


def _check_version(path: Path, version: int, schema: Schema) -> None:
    known = len(schema.migrations)
    if version > known:
        raise unsafe(
            path,
            f"a later version of Tidegate made it (schema {version}; this one knows up to {known})",
            "Run that version; there is no way back.",
        )
    if version < 1:
        raise unsafe(path, f"it has no schema of ours (version {version})", _RESTORE)
