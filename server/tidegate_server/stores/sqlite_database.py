"""A SQLite file that is ours alone, its schema's versions, and the thread that works on it.

For what is kept beside the pins: agents and the decision log. Jobs are functions of a connection; those that wait
together share one transaction, each in a savepoint of its own, so that one that fails takes none of the others along.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar, cast

from tidegate_server.errors import StoreUnavailable
from tidegate_server.stores.batch_thread import BatchThread
from tidegate_server.stores.owned_files import OwnedDirectory, unsafe

Result = TypeVar("Result")
Job: TypeAlias = Callable[[sqlite3.Connection], Any]

_BUSY_SECONDS = 5.0
_SQL = files("tidegate_server.stores") / "sql"

_log = logging.getLogger(__name__)


class SqliteDatabase:
    """Runs jobs on one database file. `holds` is what it holds, for `StoreUnavailable` and for the file's name.

    `synchronous` is SQLite's: FULL outlives a power cut, NORMAL the death of the process.
    """

    def __init__(self, directory: OwnedDirectory, connection: sqlite3.Connection, holds: str) -> None:
        self._directory = directory
        self._connection = connection
        self._holds = holds
        self._healthy = True
        self._thread: BatchThread[Job, Any] = BatchThread(
            f"tidegate-{holds}", self._run, failure=lambda: StoreUnavailable(holds)
        )

    @classmethod
    def open(cls, state: Path, holds: str, *, synchronous: str) -> Self:
        """Open `state/<holds>/<holds>.db`, made when missing, with its schema brought up to date.

        UnsafeState when it is not ours alone, not a database of ours, or of a newer version. Call it on the event loop.
        """
        root = OwnedDirectory.open(state)
        try:
            directory = root.subdirectory(holds)
        finally:
            root.close()
        try:
            directory.refuse_remote()
            directory.check_entries()
            directory.lock()
            return cls(directory, _connect(directory, holds, synchronous), holds)
        except BaseException:
            directory.close()
            raise

    async def do(self, job: Callable[[sqlite3.Connection], Result]) -> Result:
        """The result of `job`, committed. `StoreUnavailable` when it or the commit failed: then nothing happened."""
        return cast("Result", await self._thread.submit(job))

    def healthy(self) -> bool:
        """Whether the last batch went through."""
        return self._healthy

    async def close(self) -> None:
        """Finish what was accepted, then close the file. A second call does nothing."""
        await self._thread.close()
        self._connection.close()
        self._directory.close()

    def _run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            answers = [self._one(job) for job in jobs]
            self._connection.execute("COMMIT")
        except BaseException:
            self._healthy = False
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._healthy = not any(isinstance(answer, Exception) for answer in answers)
        return answers

    def _one(self, job: Job) -> Any:
        self._connection.execute("SAVEPOINT job")
        try:
            result = job(self._connection)
        except Exception:  # noqa: BLE001 - whatever a driver raises, callers see the store's one error
            _log.exception("the store of %s failed", self._holds)
            self._connection.execute("ROLLBACK TO job")
            result = StoreUnavailable(self._holds)
        self._connection.execute("RELEASE job")
        return result


def _connect(directory: OwnedDirectory, holds: str, synchronous: str) -> sqlite3.Connection:
    name = f"{holds}.db"
    path = directory.path / name
    # Made by us before SQLite sees it: so its mode is ours, and SQLite gives the same to its -wal and -shm files.
    os.close(directory.open_file(name, make=True))
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        _migrate(connection, path, holds)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise unsafe(path, f"it is no database that can be used ({error})", "Restore it, or move it away.") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path, holds: str) -> None:
    """Apply the schema's steps that the file has not seen; `user_version` counts them."""
    steps = sorted(entry.name for entry in _SQL.iterdir() if entry.name.startswith(f"{holds}_"))
    steps = [step for step in steps if step.endswith(".sqlite.sql")]
    done: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if done > len(steps):
        raise unsafe(path, f"a newer version made it (schema {done}, known {len(steps)})", "Run that version.")
    for number, step in enumerate(steps[done:], done + 1):
        script = (_SQL / step).read_text(encoding="utf-8")
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
