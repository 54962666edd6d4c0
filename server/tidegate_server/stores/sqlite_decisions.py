"""The decision log in SQLite: the embedded mode's store."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tidegate_server.core.decision_record import DecisionRecord, Tally, tallies
from tidegate_server.core.model import SECOND, WallTime
from tidegate_server.ports import DecisionFilter, DecisionPage
from tidegate_server.stores.sqlite_database import SqliteDatabase

DAY = 24 * 3600 * SECOND
_PURGE_CHUNK = 5000
"""Rows that one transaction of a purge drops: what is being written waits for no more than that."""

_ROWS_AT_ONCE = 200
"""Rows that one statement inserts. Each statement gives the interpreter's lock away and waits for it again, and while
calls are served, that costs more than a row."""

_COLUMNS = "decision_id, decide_time, kind, subject, outcome, reason, session, namespace, detail"


class SqliteDecisionStore:
    """The port `DecisionStore` on one file, `decisions/decisions.db` in the state directory."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    @classmethod
    def open(cls, state: Path) -> Self:
        """Open the store in the state directory, or make it. UnsafeState when what lies there must not be used."""
        return cls(SqliteDatabase.open(state, "decisions", synchronous="NORMAL"))

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        """Store records and add their tallies."""
        await self._database.do(lambda connection: _write(connection, records))

    async def list(self, which: DecisionFilter, *, before: int, limit: int) -> DecisionPage:
        """A page of the matching records, the newest first."""
        filters = {
            "session = ?": which.session,
            "subject = ?": which.subject,
            "kind = ?": which.kind,
            "decision_id = ?": which.decision_id,
        }
        wanted = {condition: value for condition, value in filters.items() if value}
        conditions = " AND ".join(["namespace = ?", "(sequence < ? OR ? = 0)", *wanted])
        if which.session:
            conditions += " AND session <> ''"  # lets the partial index serve
        sql = f"SELECT sequence, {_COLUMNS} FROM decisions WHERE {conditions} ORDER BY sequence DESC LIMIT ?"  # noqa: S608 - constants only
        parameters = (which.namespace, before, before, *wanted.values(), limit + 1)
        rows = await self._database.do(lambda connection: connection.execute(sql, parameters).fetchall())
        records = tuple(DecisionRecord(*row[1:]) for row in rows[:limit])
        return DecisionPage(records, rows[limit - 1][0] if len(rows) > limit else 0)

    async def totals(self, namespace: str) -> Sequence[Tally]:
        """The sums of all tallies that are kept."""
        sql = (
            "SELECT category, key, figure, SUM(value) FROM totals WHERE namespace = ?"
            " GROUP BY category, key, figure ORDER BY category, key, figure"
        )
        rows = await self._database.do(lambda connection: connection.execute(sql, (namespace,)).fetchall())
        return [Tally(*row) for row in rows]

    async def purge(self, before: WallTime) -> int:
        """Drop the records of decisions before `before`, and the sums of the whole days before it."""
        dropped = 0
        while True:
            chunk = await self._database.do(lambda connection: _purge(connection, before))
            dropped += chunk
            if chunk < _PURGE_CHUNK:
                return dropped

    def healthy(self) -> bool:
        """Whether the last operation worked."""
        return self._database.healthy()

    async def close(self) -> None:
        """Finish what is accepted, then let go of the file."""
        await self._database.close()


def _write(connection: sqlite3.Connection, records: Sequence[DecisionRecord]) -> None:
    sums: defaultdict[tuple[str, int, str, str, str], float] = defaultdict(float)
    connection.execute("SAVEPOINT rows")
    before = connection.total_changes
    for first in range(0, len(records), _ROWS_AT_ONCE):
        _insert(connection, records[first : first + _ROWS_AT_ONCE])
    if connection.total_changes - before == len(records):
        fresh = records
    else:  # some were written before: a batch whose end nobody heard of. All again, one by one
        connection.execute("ROLLBACK TO rows")
        fresh = [record for record in records if _insert(connection, [record]) == 1]
    connection.execute("RELEASE rows")
    for record in fresh:
        for group, key, figure, value in tallies(record):
            sums[record.namespace, record.decide_time // DAY, group, key, figure] += value
    connection.executemany(
        "INSERT INTO totals VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, day, category, key, figure) DO UPDATE SET value = value + excluded.value",
        [(*place, value) for place, value in sums.items()],
    )


def _insert(connection: sqlite3.Connection, records: Sequence[DecisionRecord]) -> int:
    """Insert the records by one statement; how many there were not before."""
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(records))
    insert = f"INSERT OR IGNORE INTO decisions ({_COLUMNS}) VALUES {rows}"  # noqa: S608 - constants only
    return connection.execute(insert, [value for record in records for value in record[:9]]).rowcount


def _purge(connection: sqlite3.Connection, before: WallTime) -> int:
    connection.execute("DELETE FROM totals WHERE day < ?", (before // DAY,))
    return connection.execute(
        "DELETE FROM decisions WHERE sequence IN (SELECT sequence FROM decisions WHERE decide_time < ? LIMIT ?)",
        (before, _PURGE_CHUNK),
    ).rowcount
