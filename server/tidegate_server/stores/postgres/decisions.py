"""The decision log in PostgreSQL: the shared mode's store (§10 of the contract)."""

from collections.abc import Sequence

from tidegate_server.core.decision_record import DecisionRecord, Tally, tallies
from tidegate_server.core.model import SECOND, WallTime
from tidegate_server.ports import DecisionFilter, DecisionPage
from tidegate_server.stores.postgres.database import WALK_SECONDS, Database
from tidegate_server.stores.sql import queries

DAY = 24 * 3600 * SECOND

SQL = queries("postgres/decisions")
_AT_ONCE = 1_000
_PURGE_CHUNK = 5_000
_HOLDS = "decisions"
_COLUMNS = DecisionRecord._fields[:9]
_TALLY_COLUMNS = (
    "tally_of",
    "tally_namespace",
    "tally_day",
    "tally_category",
    "tally_key",
    "tally_figure",
    "tally_value",
)


class PostgresDecisionStore:
    """The port `DecisionStore` on a shared database, which is closed by whoever opened it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        """See DecisionStore. Many records are several steps, which a second call repeats without harm."""
        for start in range(0, len(records), _AT_ONCE):
            parameters = _parameters(records[start : start + _AT_ONCE])
            await self._database.run(_HOLDS, SQL["write"], parameters, seconds=WALK_SECONDS)

    async def list(self, which: DecisionFilter, *, before: int, limit: int) -> DecisionPage:
        """See DecisionStore."""
        parameters = {**which._asdict(), "before": before, "limit": limit + 1}
        rows = await self._database.run(_HOLDS, SQL["list"], parameters)
        records = tuple(DecisionRecord(*row[1:]) for row in rows[:limit])
        return DecisionPage(records, rows[limit - 1][0] if len(rows) > limit else 0)

    async def totals(self, namespace: str) -> Sequence[Tally]:
        """See DecisionStore."""
        rows = await self._database.run(_HOLDS, SQL["totals"], {"namespace": namespace})
        return [Tally(*row) for row in rows]

    async def purge(self, before: WallTime) -> int:
        """See DecisionStore."""
        dropped = 0
        while True:
            parameters = {"day": before // DAY, "before": before, "limit": _PURGE_CHUNK}
            rows = await self._database.run(_HOLDS, SQL["purge"], parameters, seconds=WALK_SECONDS)
            dropped += len(rows)
            if len(rows) < _PURGE_CHUNK:
                return dropped

    def healthy(self) -> bool:
        """See DecisionStore."""
        return self._database.healthy(_HOLDS)

    async def close(self) -> None:
        """See DecisionStore."""


def _parameters(records: Sequence[DecisionRecord]) -> dict[str, list[object]]:
    """Columns of the records, each id once, and of their tallies."""
    once = {record.decision_id: record for record in reversed(records)}
    new = [record for record in records if once[record.decision_id] is record]
    columns: dict[str, list[object]] = {name: [_storable(getattr(record, name)) for record in new] for name in _COLUMNS}
    rows = [
        (record.decision_id, record.namespace, record.decide_time // DAY, *tally[:3], float(tally.value))
        for record in new
        for tally in tallies(record)
    ]
    for name, values in zip(_TALLY_COLUMNS, zip(*rows, strict=True) if rows else [()] * 7, strict=True):
        columns[name] = [_storable(value) for value in values]
    return columns


def _storable(value: object) -> object:
    """PostgreSQL's text holds no NUL; it is shown as what cannot be shown."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
