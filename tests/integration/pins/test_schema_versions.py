"""Upgrades go forward only: an older database is lifted, a newer one is refused, a failed lift leaves the old one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate_server.errors import UnsafeState
from tidegate_server.stores.owned_files import OwnedDirectory, held_files
from tidegate_server.stores.sqlite_home import Schema, SqliteHome
from tidegate_server.stores.sqlite_pins import SCHEMA

FIRST = Schema("things", 7, ("CREATE TABLE thing (name TEXT); INSERT INTO thing VALUES ('old');",))
SECOND = FIRST._replace(migrations=(*FIRST.migrations, "ALTER TABLE thing ADD COLUMN size; UPDATE thing SET size = 1;"))
BROKEN = FIRST._replace(
    migrations=(*FIRST.migrations, "UPDATE thing SET name = 'half'; INSERT INTO nothing VALUES (1);")
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[OwnedDirectory]:
    directory = OwnedDirectory.open(tmp_path / "state")
    yield directory
    directory.close()


def rows(state: OwnedDirectory, schema: Schema) -> list[tuple[object, ...]]:
    """Open with this version, read everything, close."""
    home, connection = SqliteHome.open(state, "things", schema)
    found = connection.execute("SELECT * FROM thing").fetchall()
    home.close(connection)
    return found


def test_an_older_database_is_lifted_once(state: OwnedDirectory) -> None:
    assert rows(state, FIRST) == [("old",)]
    assert rows(state, SECOND) == [("old", 1)]
    assert rows(state, SECOND) == [("old", 1)]


def test_an_older_version_refuses_a_newer_database(state: OwnedDirectory) -> None:
    rows(state, SECOND)
    with pytest.raises(UnsafeState, match=r"schema 2; this one knows up to 1"):
        rows(state, FIRST)
    assert rows(state, SECOND) == [("old", 1)]


def test_a_lift_that_fails_leaves_what_was(state: OwnedDirectory) -> None:
    rows(state, FIRST)
    with pytest.raises(UnsafeState, match="cannot be opened"):
        rows(state, BROKEN)
    assert rows(state, FIRST) == [("old",)]


def test_a_refused_start_lets_go_of_everything(state: OwnedDirectory) -> None:
    rows(state, SECOND)
    before = held_files().total()
    for _ in range(3):
        with pytest.raises(UnsafeState):
            rows(state, FIRST)
    assert held_files().total() == before


def test_the_first_version_of_the_pins_is_never_edited() -> None:
    # A change goes into a new script: databases that have run this one will never run it again.
    assert len(SCHEMA.migrations) >= 1
    assert "CREATE TABLE witness" in SCHEMA.migrations[0]
