"""A database is well until something failed: work that is under way is no fault."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from tidegate_server.errors import StoreUnavailable
from tidegate_server.stores.sqlite_database import SqliteDatabase


async def test_work_under_way_is_healthy_and_a_fault_is_not(tmp_path: Path) -> None:
    database = SqliteDatabase.open(tmp_path / "state", "decisions", synchronous="NORMAL")
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: sqlite3.Connection) -> str:
        begun.set()
        assert go_on.wait(10)
        return "done"

    working = asyncio.ensure_future(database.do(slow))
    await asyncio.to_thread(begun.wait, 10)
    assert database.healthy()
    go_on.set()
    assert await working == "done"
    with pytest.raises(StoreUnavailable):
        await database.do(lambda connection: connection.execute("no SQL"))
    assert not database.healthy()
    await database.do(lambda connection: connection.execute("SELECT 1").fetchone())
    assert database.healthy()
    await database.close()
