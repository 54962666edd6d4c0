"""Backup while the server runs, and restore, by the commands of docs/backup.md."""

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import PinFilter
from tidegate_server.stores.keys import PINS, kept_key
from tidegate_server.stores.owned_files import OwnedDirectory
from tidegate_server.stores.sqlite_pins import DIRECTORY, SqlitePinStore

from tests.contract.pin_samples import make_pin
from tests.integration.pins.places import home

DOCUMENT = Path(__file__).parents[3] / "docs/backup.md"


async def serve(state: Path) -> SqlitePinStore:
    """The store with the key that is kept beside it, as the server has it."""
    directory = OwnedDirectory.open(state)
    try:
        return await SqlitePinStore.open(directory, kept_key(directory, PINS, before=DIRECTORY))
    finally:
        directory.close()


def run_documented(section: str, where: Path) -> None:
    """Run every command that the document gives in one section."""
    text = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert commands
    for command in commands:
        python = Path(sys.executable).parent
        subprocess.run(
            ["sh", "-eu", "-c", command], check=True, cwd=where, env={"PATH": f"{python}:/usr/bin:/bin"}, timeout=60
        )


async def test_a_backup_of_a_busy_server_is_restored_by_the_documented_commands(tmp_path: Path) -> None:
    store = await serve(tmp_path / "state")
    pins = [make_pin(str(n)) for n in range(500)]
    await asyncio.gather(*(store.create(pin) for pin in pins))
    await store.retire(PinFilter(pin_id=pins[0].pin_id), who="ops", when=1, why="test", dry_run=False)
    busy = asyncio.gather(*(store.create(make_pin(f"meanwhile {n}")) for n in range(2000)))
    await asyncio.to_thread(run_documented, "Back up", tmp_path)
    await busy
    await store.create(make_pin("after"))
    await store.close()

    (home(tmp_path / "state") / "data.sqlite3").write_bytes(b"the disk died")
    (tmp_path / "state" / PINS).unlink()
    await asyncio.to_thread(run_documented, "Restore", tmp_path)
    store = await serve(tmp_path / "state")
    assert await store.get(pins[0].pin_id) == pins[0]._replace(retired=True)
    assert [await store.get(pin.pin_id) for pin in pins[1:]] == pins[1:]
    assert await store.get(make_pin("after").pin_id) is None
    census = await store.verify()
    assert census.corrupt == ()
    assert 500 <= census.checked <= 2500
    await store.close()


async def test_the_store_itself_backs_up_into_a_new_directory_only(tmp_path: Path) -> None:
    store = await serve(tmp_path / "state")
    await store.create(make_pin("a"))
    await store.backup(tmp_path / "copy")
    with pytest.raises(StoreUnavailable):
        await store.backup(tmp_path / "copy")
    assert store.healthy()
    await store.close()
    shutil.rmtree(home(tmp_path / "state"))
    (tmp_path / "copy").rename(home(tmp_path / "state"))
    store = await serve(tmp_path / "state")
    assert await store.get(make_pin("a").pin_id) == make_pin("a")
    await store.close()


async def test_a_lost_key_is_not_replaced_by_a_new_one(tmp_path: Path) -> None:
    store = await serve(tmp_path / "state")
    await store.close()
    (tmp_path / "state" / PINS).unlink()
    with pytest.raises(UnsafeState, match="the key is missing"):
        await serve(tmp_path / "state")
    assert not (tmp_path / "state" / PINS).exists()
