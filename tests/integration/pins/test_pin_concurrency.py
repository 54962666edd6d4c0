"""Many callers, one writer: the event loop waits for no disk, one fsync serves many, and no answer is out of date."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
from tidegate_server.core.model import Pin
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import PinFilter
from tidegate_server.stores import sqlite_home
from tidegate_server.stores.pin_rows import Retirement
from tidegate_server.stores.sqlite_pins import SqlitePinStore

from tests.contract.pin_samples import make_pin
from tests.integration.pins.places import database, open_pins

PIN = make_pin("worker")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlitePinStore]:
    store = await open_pins(tmp_path / "state")
    yield store
    await store.close()


async def retire(store: SqlitePinStore, pin: Pin) -> int:
    """Retire one pin."""
    return await store.retire(PinFilter(pin_id=pin.pin_id), who="ops", when=1, why="test", dry_run=False)


class Held:
    """One of the store's threads, held up until `let_go`: what is asked meanwhile waits behind."""

    def __init__(self) -> None:
        self._gate = threading.Event()
        self.entered = threading.Event()

    def __call__(self, _connection: apsw.Connection) -> None:
        self.entered.set()
        self._gate.wait(10)

    def let_go(self) -> None:
        """End the hold-up."""
        self._gate.set()


async def test_many_new_pins_share_one_commit(store: SqlitePinStore, tmp_path: Path) -> None:
    commits = 0
    original = store._home.commit

    def counting(connection: apsw.Connection, jobs: list[object]) -> list[object]:
        nonlocal commits
        commits += 1
        return original(connection, jobs)  # type: ignore[arg-type]

    store._home.commit = counting  # type: ignore[assignment, method-assign]
    held = Held()
    first = asyncio.ensure_future(store._commit(held))
    await asyncio.to_thread(held.entered.wait, 10)
    waiting = [asyncio.ensure_future(store.create(make_pin(str(n)))) for n in range(500)]
    await asyncio.sleep(0)
    held.let_go()
    await first
    assert sum(created for _, created in await asyncio.gather(*waiting)) == 500
    assert commits == 2


async def test_two_possible_bindings_for_one_worker(store: SqlitePinStore) -> None:
    pins = [PIN._replace(candidate=f"{('claude', 'codex')[n % 2]}/m") for n in range(200)]
    answers = await asyncio.gather(*(store.create(pin) for pin in pins))
    assert len({stored for stored, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


async def test_a_foreign_write_lock_is_waited_for_and_the_loop_goes_on(store: SqlitePinStore, tmp_path: Path) -> None:
    await store.create(PIN)
    with database(tmp_path / "state") as other:
        other.execute("BEGIN IMMEDIATE")
        create = asyncio.ensure_future(store.create(make_pin("later")))
        done, _ = await asyncio.wait({create}, timeout=0.2)  # the loop runs its timers while the writer waits
        assert not done
        assert await store.get(PIN.pin_id) == PIN
        assert await store.get(make_pin("never").pin_id) is None  # nor do cold reads wait for it
        other.execute("ROLLBACK")
        assert await create == (make_pin("later"), True)
    assert store.healthy()


async def test_a_foreign_write_lock_that_stays_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_home, "_BUSY_MILLISECONDS", 20)
    store = await open_pins(tmp_path / "state")
    with database(tmp_path / "state") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await store.create(PIN)
        assert "another program holds the database" in store.warnings()[0]
        other.execute("ROLLBACK")
    assert await store.create(PIN) == (PIN, True)
    assert store.healthy()
    await store.close()


async def test_a_read_that_is_older_than_a_retirement_is_not_kept(tmp_path: Path) -> None:
    store = await open_pins(tmp_path / "state")
    await store.create(PIN)
    await store.close()
    store = await open_pins(tmp_path / "state")  # nothing is cached
    first, second = Held(), Held()
    opening = asyncio.ensure_future(store._query(first))
    await asyncio.to_thread(first.entered.wait, 10)
    reading = asyncio.ensure_future(store.get(PIN.pin_id))
    behind_it = asyncio.ensure_future(store._query(second))  # of the same batch: the pin is read, and not yet told
    await asyncio.sleep(0)
    first.let_go()
    await asyncio.to_thread(second.entered.wait, 10)
    assert await store._retire([PIN], Retirement("ops", 1, "test")) == 1
    store._cache.clear()
    second.let_go()
    await asyncio.gather(opening, behind_it)
    assert await reading == PIN  # it began before the retirement ended
    assert store.peek(PIN.pin_id) is None
    assert await store.get(PIN.pin_id) == PIN._replace(retired=True)
    await store.close()


async def test_a_retirement_that_nobody_waits_for_reaches_the_cache(store: SqlitePinStore) -> None:
    await store.create(PIN)
    held = Held()
    blocking = asyncio.ensure_future(store._commit(held))
    await asyncio.to_thread(held.entered.wait, 10)
    retiring = asyncio.ensure_future(retire(store, PIN))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    retiring.cancel()
    held.let_go()
    await blocking
    with pytest.raises(asyncio.CancelledError):
        await retiring
    await store.create(make_pin("behind it"))  # whatever was submitted before this has happened, or never will
    stored = await store.get(PIN.pin_id)
    with_the_file = await store._query(lambda c: store._rows.find(c, PIN.pin_id))
    assert stored == with_the_file


async def test_a_small_cache_is_only_slower(tmp_path: Path) -> None:
    store = await open_pins(tmp_path / "state", cache_size=2)
    pins = [make_pin(str(n)) for n in range(50)]
    for pin in pins:
        await store.create(pin)
    assert [await store.get(pin.pin_id) for pin in pins] == pins
    assert len(store._cache) <= 2
    await store.close()


async def test_after_close_every_call_is_unavailable(tmp_path: Path) -> None:
    store = await open_pins(tmp_path / "state")
    await store.close()
    await store.close()
    for call in (store.get(PIN.pin_id), store.create(PIN), store.verify(), retire(store, PIN)):
        with pytest.raises(StoreUnavailable):
            await call
