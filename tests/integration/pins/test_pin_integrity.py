"""A row that was changed behind the store's back is told from one that never was, and others go on (§5)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest
from tidegate_server.core.model import CorruptPin, Pin
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import PinFilter
from tidegate_server.stores.sqlite_home import DATABASE
from tidegate_server.stores.sqlite_pins import SqlitePinStore

from tests.contract.pin_samples import make_pin
from tests.integration.pins.places import database, home, open_pins

PINS = [make_pin(str(n)) for n in range(300)]
HURT, WELL = PINS[7], [*PINS[:7], *PINS[8:]]


@pytest.fixture
async def state(tmp_path: Path) -> Path:
    """A stopped store of 300 pins: several pages."""
    store = await open_pins(tmp_path / "state")
    await asyncio.gather(*(store.create(pin) for pin in PINS))
    await store.close()
    return tmp_path / "state"


@pytest.fixture
async def store(state: Path) -> AsyncIterator[SqlitePinStore]:
    """The same, open, with nothing cached."""
    store = await open_pins(state)
    yield store
    await store.close()


def flip(content: bytes, bit: int) -> bytes:
    """One bit of it, changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flip_column(column: str, bit: int) -> Callable[[apsw.Connection], None]:
    """Change a bit in a column of the row of HURT."""

    def hurt(connection: apsw.Connection) -> None:
        content = connection.execute(f"SELECT {column} FROM pin WHERE pin_id = ?", (HURT.pin_id,)).get
        statement = f"UPDATE pin SET {column} = ? WHERE pin_id = ?"
        connection.execute(statement, (flip(content, bit % (len(content) * 8)), HURT.pin_id))

    return hurt


@pytest.mark.parametrize("bit", [0, 7, 131, 255, 1000])
@pytest.mark.parametrize("column", ["pin_id", "record", "checksum"])
async def test_a_flipped_bit_refuses_its_worker_alone(
    state: Path, store: SqlitePinStore, column: str, bit: int
) -> None:
    with database(state) as connection:
        flip_column(column, bit)(connection)
    corrupt = CorruptPin(HURT.pin_id)
    assert await store.get(HURT.pin_id) == corrupt
    assert await store.create(HURT) == (corrupt, False)
    assert await store.create(HURT._replace(candidate="codex/other")) == (corrupt, False)
    assert [await store.get(pin.pin_id) for pin in WELL] == WELL
    assert await store.verify() == (len(PINS), (HURT.pin_id,))
    assert store.healthy()
    assert any(HURT.pin_id.hex() in warning for warning in store.warnings())


async def test_a_row_moved_to_another_worker_is_corrupt_for_both(state: Path, store: SqlitePinStore) -> None:
    with database(state) as connection:
        connection.execute("DELETE FROM pin WHERE pin_id = ?", (PINS[1].pin_id,))
        connection.execute("UPDATE pin SET pin_id = ? WHERE pin_id = ?", (PINS[1].pin_id, PINS[0].pin_id))
    for pin in PINS[:2]:
        assert await store.get(pin.pin_id) == CorruptPin(pin.pin_id)
        assert await store.create(pin) == (CorruptPin(pin.pin_id), False)


async def test_a_row_made_without_the_key_is_corrupt(state: Path, store: SqlitePinStore) -> None:
    forged = make_pin("forged")
    with database(state) as connection:
        connection.execute(
            "INSERT INTO pin SELECT ?, record, checksum FROM pin WHERE pin_id = ?", (forged.pin_id, HURT.pin_id)
        )
    assert await store.get(forged.pin_id) == CorruptPin(forged.pin_id)
    assert (await store.verify()).corrupt == (forged.pin_id,)


async def test_a_deleted_row_is_not_a_new_worker(state: Path, store: SqlitePinStore) -> None:
    with database(state) as connection:
        connection.execute("DELETE FROM pin WHERE pin_id = ?", (HURT.pin_id,))
    assert await store.get(HURT.pin_id) == CorruptPin(HURT.pin_id)
    assert await store.create(HURT) == (CorruptPin(HURT.pin_id), False)


async def test_an_old_row_does_not_undo_a_retirement_without_the_key(state: Path, store: SqlitePinStore) -> None:
    await store.retire(PinFilter(pin_id=HURT.pin_id), who="ops", when=1, why="test", dry_run=False)
    with database(state) as connection:  # the last byte of the record says "retired"
        connection.execute(
            "UPDATE pin SET record = CAST(substr(record, 1, length(record) - 1) || x'00' AS BLOB) WHERE pin_id = ?",
            (HURT.pin_id,),
        )
    await store.close()
    again = await open_pins(state)
    assert await again.get(HURT.pin_id) == CorruptPin(HURT.pin_id)
    await again.close()


@pytest.mark.parametrize("seed", range(40))
async def test_no_flipped_bit_in_the_file_makes_a_pin_new_or_another(state: Path, seed: int) -> None:
    """Anywhere in the file's tables, not only in a column: in a length, in a pointer, in the order of a page."""
    chance = random.Random(seed)
    path = home(state) / DATABASE
    content = path.read_bytes()
    bit = chance.randrange(4096 * 8, len(content) * 8)  # the first page is judged at start
    path.write_bytes(flip(content, bit))
    store = await open_pins(state)
    found = 0
    for pin in PINS:
        allowed = (pin, CorruptPin(pin.pin_id))
        # Unavailable is right for a page that SQLite cannot read: nothing is known, and nothing is said.
        with contextlib.suppress(StoreUnavailable):
            answer = await store.get(pin.pin_id)
            assert answer in allowed, bit
            found += answer == pin
        with contextlib.suppress(StoreUnavailable):
            stored, created = await store.create(pin._replace(candidate="codex/other"))
            assert stored in allowed, bit
            assert not created, bit
    assert found > len(PINS) / 2, bit  # one bit lies on one page; whoever's row lies on another goes on
    await store.close()


async def test_a_page_that_cannot_be_read_refuses_its_own_workers_only(state: Path) -> None:
    with database(state) as connection:
        page = int(connection.execute("SELECT max(pageno) FROM dbstat WHERE name = 'pin' AND pagetype = 'leaf'").get)
    path = home(state) / DATABASE
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes([0xFF]) * 4096
    path.write_bytes(content)
    store = await open_pins(state)
    found = await asyncio.gather(*(store.get(pin.pin_id) for pin in PINS))
    lost = [pin for pin, answer in zip(PINS, found, strict=True) if answer == CorruptPin(pin.pin_id)]
    assert 0 < len(lost) < 50
    assert [answer for answer in found if isinstance(answer, Pin)] == [pin for pin in PINS if pin not in lost]
    assert store.healthy()
    await store.close()
