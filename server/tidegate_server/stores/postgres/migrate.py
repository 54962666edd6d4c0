"""Bring a database's schema up to date: what `tidegate migrate` does."""

from collections.abc import Sequence

import psycopg

from tidegate_server.errors import UnsafeState
from tidegate_server.stores.postgres.schema import PHASES, known_migrations

_TABLE = """
CREATE TABLE IF NOT EXISTS tidegate_migration (
    name text NOT NULL PRIMARY KEY,
    at   timestamptz NOT NULL DEFAULT now()
)
"""
_LOCK = 0x7469646567617465  # "tidegate"; held to the end of the transaction, so a pooler may stand in between


def migrate(dsn: str, phases: Sequence[str] = PHASES) -> Sequence[str]:
    """Apply the migrations of these phases that the database has not seen, all or none; return their names.

    Raises UnsafeState when a newer version was there, or the database cannot be reached or refuses.
    """
    try:
        with psycopg.connect(dsn, prepare_threshold=None, connect_timeout=10) as connection:
            return _migrate(connection, phases)
    except psycopg.Error as error:
        state = f", SQLSTATE {error.sqlstate}" if error.sqlstate else ""
        raise UnsafeState(f"the database cannot be migrated ({type(error).__name__}{state})") from error


def _migrate(connection: "psycopg.Connection[tuple[object, ...]]", phases: Sequence[str]) -> Sequence[str]:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    connection.execute(_TABLE)
    applied = {name for (name,) in connection.execute("SELECT name FROM tidegate_migration")}
    known = known_migrations()
    unknown = sorted(str(name) for name in applied - {migration.name for migration in known})
    if unknown:
        raise UnsafeState(f"a newer version has migrated the database ({', '.join(unknown)}); run that version")
    todo = [migration for migration in known if migration.phase in phases and migration.name not in applied]
    for migration in todo:
        connection.execute(migration.script.encode())
        connection.execute("INSERT INTO tidegate_migration (name) VALUES (%s)", (migration.name,))
    return [migration.name for migration in todo]
