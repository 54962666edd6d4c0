"""Unsafe states of the pins' files (§5): each its own clear refusal, and afterwards every file is what it was.

Among them what has hurt systems like this one in the field: a WAL on a network file system, a connection carried over a
fork, state read through links, a mode checked on another inode than the one used, a file replaced while in use.
"""

import asyncio
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from tidegate_server.core.pins import PinCodec
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.stores import sqlite_home
from tidegate_server.stores.marker import MARKER
from tidegate_server.stores.owned_files import OwnedDirectory, held_files
from tidegate_server.stores.sqlite_home import DATABASE, SHM, WAL
from tidegate_server.stores.sqlite_pins import DIRECTORY, SqlitePinStore

from tests.contract.pin_samples import make_pin
from tests.integration.pins.places import KEY, database, home, open_pins

PIN = make_pin("kept")

Hurt = Callable[[Path], object]
"""Makes a sound directory of pins (its argument) unsafe."""


def contents(directory: Path) -> dict[str, object]:
    """Everything that a start could change: names, kinds, modes, owners, links' targets, hashes."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        info = path.lstat()
        if path.name == SHM and stat.S_ISREG(info.st_mode):
            continue  # SQLite's scratch memory: it holds nothing, and every opening writes it anew
        content: object = None
        if stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)  # noqa: PTH115 - the text itself
        found[str(path.relative_to(directory))] = (stat.filemode(info.st_mode), info.st_uid, info.st_nlink, content)
    return found


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """A state directory with one pin, after a clean stop."""
    store = await open_pins(tmp_path / "state")
    await store.create(PIN)
    await store.close()
    return tmp_path / "state"


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    """A state directory with one pin, after kill -9: the pin is in the write-ahead log alone."""
    return shutil.copytree(killed_once, tmp_path / "state")


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state = tmp_path_factory.mktemp("killed") / "state"
    script = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.integration.pins.places import open_pins\n"
        "from tests.contract.pin_samples import make_pin\n"
        "async def main():\n"
        "    store = await open_pins(Path(sys.argv[1]))\n"
        "    await store.create(make_pin('kept'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(state)], check=False, timeout=60)
    assert done.returncode == -9
    return state


async def refusal(state: Path, key: bytes = KEY) -> str:
    """Try to start; the refusal's words, after making sure that nothing was changed."""
    before = contents(state)
    with pytest.raises(UnsafeState) as refused:
        await open_pins(state, key)
    assert contents(state) == before
    message = str(refused.value)
    assert "Nothing was changed." in message
    return message


def replace_with_link(path: Path) -> None:
    """The file goes elsewhere, a link to it takes its place."""
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replace_with_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def replace_with_socket(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)
    path.chmod(0o600)


def replace_with_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def second_link(path: Path) -> None:
    os.link(path, path.parent.parent / "another-name")


def dangling_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/nowhere/at/all")


def wider(path: Path) -> None:
    path.chmod(0o666)


def readable_by_group(path: Path) -> None:
    path.chmod(0o640)


EVERY_FILE: list[tuple[Hurt, str]] = [
    (replace_with_link, "symbolic link"),
    (dangling_link, "symbolic link"),
    (replace_with_fifo, "named pipe"),
    (replace_with_socket, "socket"),
    (replace_with_directory, "is a directory"),
    (second_link, "2 hard links"),
    (wider, "0666"),
    (readable_by_group, "0640"),
]


MADE = f"{DIRECTORY}.made"
"""The witness outside of the directory that it vouches for."""


@pytest.mark.parametrize("name", [DATABASE, WAL, SHM, MARKER, "lock"])
@pytest.mark.parametrize(("hurt", "words"), EVERY_FILE, ids=[hurt.__name__ for hurt, _ in EVERY_FILE])
async def test_a_file_that_is_not_ours_alone_is_refused(killed: Path, name: str, hurt: Hurt, words: str) -> None:
    hurt(home(killed) / name)
    message = await refusal(killed)
    assert words in message
    assert name in message


def header_number(path: Path, at: int, number: int) -> None:
    """Change a four-byte number in the first page of a database."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(number.to_bytes(4, "big"))


def empty(path: Path) -> None:
    os.truncate(path, 0)


def nulls(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def forty_bytes(path: Path) -> None:
    os.truncate(path, 40)


def text(path: Path) -> None:
    path.write_text("pins\n" * 1000)


def foreign_database(path: Path) -> None:
    path.unlink()
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    path.chmod(0o600)


DATABASE_FAULTS: list[tuple[Hurt, str]] = [
    (empty, "zero bytes"),
    (nulls, "NULs"),
    (half, "truncated"),
    (forty_bytes, "truncated"),
    (text, "not an SQLite database"),
    (foreign_database, "not Tidegate's pins"),
    (lambda path: header_number(path, 60, 99), "later version"),
    (lambda path: header_number(path, 60, 0), "no schema of ours"),
    (lambda path: header_number(path, 16, 0x10000101), "journal mode"),
    (lambda path: path.unlink(), "is lost"),
]


@pytest.mark.parametrize(("hurt", "words"), DATABASE_FAULTS, ids=[words for _, words in DATABASE_FAULTS])
async def test_a_damaged_database_is_refused(stopped: Path, hurt: Hurt, words: str) -> None:
    hurt(home(stopped) / DATABASE)
    assert words in await refusal(stopped)


LOG_FAULTS: list[tuple[Hurt, str]] = [
    (lambda path: path.unlink(), "missing"),
    (empty, "empty, truncated or overwritten"),
    (nulls, "empty, truncated or overwritten"),
    (lambda path: os.truncate(path, 31), "empty, truncated or overwritten"),
]


@pytest.mark.parametrize(("hurt", "words"), LOG_FAULTS)
async def test_a_damaged_log_of_a_killed_server_is_refused(killed: Path, hurt: Hurt, words: str) -> None:
    hurt(home(killed) / WAL)
    assert words in await refusal(killed)


async def test_a_database_cut_off_before_its_log_is_refused(killed: Path) -> None:
    os.truncate(home(killed) / DATABASE, 4096)
    assert "truncated" in await refusal(killed)


async def test_the_log_of_a_stopped_server_is_not_needed(stopped: Path) -> None:
    (home(stopped) / WAL).unlink()
    (home(stopped) / SHM).unlink()
    store = await open_pins(stopped)
    assert await store.get(PIN.pin_id) == PIN
    await store.close()


async def test_an_operator_can_vouch_for_a_log_that_was_folded_in(killed: Path) -> None:
    apsw.Connection(str(home(killed) / DATABASE)).execute("SELECT * FROM pin").fetchall()  # closing folds the log in
    assert not (home(killed) / WAL).exists()
    assert "state: clean" in await refusal(killed)
    marker = home(killed) / MARKER
    marker.write_text(marker.read_text().replace("state: open ", "state: clean"))
    store = await open_pins(killed)
    assert await store.get(PIN.pin_id) == PIN
    await store.close()


async def test_a_killed_server_starts_again_with_its_pin(killed: Path) -> None:
    store = await open_pins(killed)
    assert await store.get(PIN.pin_id) == PIN
    await store.close()


@pytest.mark.parametrize("hurt", [lambda p: p.unlink(), empty, nulls, text, half])
async def test_a_missing_or_damaged_marker_is_refused(stopped: Path, hurt: Hurt) -> None:
    hurt(home(stopped) / MARKER)
    message = await refusal(stopped)
    assert "marker is missing" in message or "its content is damaged" in message


async def test_a_marker_of_a_later_version_is_refused(stopped: Path) -> None:
    marker = home(stopped) / MARKER
    marker.write_text(marker.read_text().replace("format: 1", "format: 2"))
    assert "later version" in await refusal(stopped)


async def test_another_key_is_refused(stopped: Path) -> None:
    assert "another key" in await refusal(stopped, KEY[::-1])


async def test_another_key_is_refused_even_with_a_forged_marker(stopped: Path) -> None:
    marker = home(stopped) / MARKER
    ours, other = PinCodec(KEY).check_value.hex(), PinCodec(KEY[::-1]).check_value.hex()
    marker.write_text(marker.read_text().replace(ours, other))
    assert "another key" in await refusal(stopped, KEY[::-1])


async def test_the_database_of_another_server_is_refused(stopped: Path, tmp_path: Path) -> None:
    other = await open_pins(tmp_path / "other")
    await other.close()
    shutil.copy(home(tmp_path / "other") / DATABASE, home(stopped) / DATABASE)
    assert "not the database that the marker" in await refusal(stopped)


async def test_a_schema_from_the_future_that_is_in_the_log_alone_is_refused(killed: Path) -> None:
    with database(killed) as connection:
        connection.pragma("user_version", 99)
    assert "later version" in await refusal(killed)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o1777])
async def test_a_directory_that_lets_others_in_is_refused(stopped: Path, mode: int) -> None:
    home(stopped).chmod(mode)
    assert f"{mode:04o}" in await refusal(stopped)
    home(stopped).chmod(0o700)
    stopped.chmod(mode)
    assert f"{mode:04o}" in await refusal(stopped)


async def test_a_directory_behind_a_link_is_refused(stopped: Path, tmp_path: Path) -> None:
    home(stopped).rename(tmp_path / "real")
    home(stopped).symlink_to(tmp_path / "real")
    assert "symbolic link" in await refusal(stopped)
    home(stopped).unlink()
    (tmp_path / "real").rename(home(stopped))
    stopped.rename(tmp_path / "state2")
    stopped.symlink_to(tmp_path / "state2")
    assert "symbolic link" in await refusal(stopped)


async def test_a_writable_directory_inside_ours_is_refused(stopped: Path) -> None:
    inside = home(stopped) / "inside"
    inside.mkdir()
    inside.chmod(0o777)
    assert "inside" in await refusal(stopped)


async def test_a_parent_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)  # sticky, as /tmp: nobody can rename what is not theirs
    store = await open_pins(shared / "state")
    await store.create(PIN)
    await store.close()
    shared.chmod(0o777)
    assert "every user may write" in await refusal(shared / "state")


async def test_files_of_another_user_are_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert f"belongs to user {us}" in await refusal(stopped)


@pytest.mark.parametrize("name", [DATABASE, WAL, MARKER, "."])
async def test_a_single_file_of_another_user_is_refused(
    stopped: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    us = os.geteuid()
    if us == 0:
        os.chown(home(stopped) / name, 65534, 65534)
    else:  # nobody else can give a file away; then it is us who become another
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert "belongs to user" in await refusal(stopped)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "9p", "virtiofs", "fuse", "fuse.sshfs", "fuseblk", "cifs"])
async def test_a_network_or_fuse_file_system_is_refused(stopped: Path, kind: str) -> None:
    before = contents(stopped)
    state = OwnedDirectory.open(stopped)
    with pytest.raises(UnsafeState, match=f"of type {kind},"):
        await SqlitePinStore.open(state, KEY, file_system=lambda _: kind)
    state.close()
    assert contents(stopped) == before


async def test_a_second_server_on_the_same_directory_is_refused(stopped: Path) -> None:
    store = await open_pins(stopped)
    with pytest.raises(UnsafeState, match="another process has it in use"):
        await open_pins(stopped)
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom tests.integration.pins.places import open_pins\n"
        "asyncio.run(open_pins(Path(sys.argv[1])))"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, str(stopped)], check=False, capture_output=True, text=True, timeout=60
    )
    assert "another process has it in use" in other.stderr
    assert await store.get(PIN.pin_id) == PIN  # and the first one never noticed
    await store.create(make_pin("later"))
    await store.close()


@pytest.mark.parametrize("name", [DATABASE, WAL, SHM, MARKER, "."])
async def test_a_file_replaced_while_running_ends_the_service(stopped: Path, name: str) -> None:
    store = await open_pins(stopped)
    await store.create(make_pin("before"))
    path = home(stopped) if name == "." else home(stopped) / name
    aside = stopped.parent / "aside"
    path.rename(aside)
    (shutil.copytree if name == "." else shutil.copy2)(aside, path)
    with pytest.raises(StoreUnavailable):
        await store.create(make_pin("after"))
    assert not store.healthy()
    assert any("replaced" in warning for warning in store.warnings())
    if path.is_dir():
        shutil.rmtree(path)
    aside.replace(path)  # putting it back does not help: what happened in between is not known
    for call in (store.get(PIN.pin_id), store.create(PIN), store.verify()):
        with pytest.raises(StoreUnavailable):
            await call
    assert store.peek(make_pin("before").pin_id) is None
    await store.close()
    store = await open_pins(stopped)
    assert await store.get(make_pin("before").pin_id) == make_pin("before")
    assert await store.get(make_pin("after").pin_id) is None
    await store.close()


@pytest.mark.parametrize("name", [DATABASE, WAL, SHM])
async def test_a_file_replaced_between_the_check_and_the_opening_is_noticed(
    killed: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original = home(killed) / name, sqlite_home._check_version

    def at_the_last_moment(*arguments: Any) -> None:
        # Called for the first page, before SQLite opens anything, and again after it opened everything.
        if name == DATABASE or sqlite_has(path):
            aside = path.with_name("aside")
            path.rename(aside)
            shutil.copy2(aside, path)
        original(*arguments)

    def sqlite_has(path: Path) -> bool:
        return held_files()[path.stat().st_dev, path.stat().st_ino] > 0

    monkeypatch.setattr(sqlite_home, "_check_version", at_the_last_moment)
    with pytest.raises(UnsafeState, match="replaced while it was being opened"):
        await open_pins(killed)


async def test_a_forked_child_can_neither_read_nor_write_nor_close(stopped: Path) -> None:
    store = await open_pins(stopped)
    await store.create(make_pin("before"))

    async def in_child() -> int:
        for call in (store.get(make_pin("never").pin_id), store.create(make_pin("child"))):
            try:
                await call
            except StoreUnavailable:
                continue
            return 1
        await store.close()
        return 0

    coroutine = in_child()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that this is unwise is what the test is about
        child = os.fork()
    if child == 0:
        try:
            coroutine.send(None)
        except StopIteration as done:
            os._exit(done.value)
        finally:
            os._exit(2)  # it waited for something, or fell over
    coroutine.close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert await store.create(make_pin("after")) == (make_pin("after"), True)
    with pytest.raises(UnsafeState, match="in use"):
        await open_pins(stopped)  # the child's end did not take the lock away
    assert await store.get(make_pin("child").pin_id) is None
    await store.close()


async def test_what_we_make_is_for_us_alone_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o777):
        before = os.umask(umask)
        try:
            store = await open_pins(tmp_path / f"state{umask}")
        finally:
            os.umask(before)
        await store.create(PIN)
        for path in (home(tmp_path / f"state{umask}"), *home(tmp_path / f"state{umask}").iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        await store.close()


@pytest.mark.parametrize("step", ["database", "marker", "name"])
async def test_a_first_start_that_died_between_its_steps_is_finished(tmp_path: Path, step: str) -> None:
    state = tmp_path / "state"
    store = await open_pins(state)
    await store.close()
    directory = home(state)
    if step != "name":
        (directory / MARKER).unlink()
    if step == "database":
        (directory / DATABASE).write_bytes(b"half of a draft")
    (directory / DATABASE).rename(directory / "draft.sqlite3")
    for name in (WAL, SHM):
        (directory / name).unlink()
    (state / MADE).unlink()
    store = await open_pins(state)
    assert await store.create(PIN) == (PIN, True)
    await store.close()
    assert (state / MADE).exists()


@pytest.mark.parametrize("how", ["directory", "content", "all but the lock"])
async def test_lost_pins_are_not_taken_for_pins_that_never_were(tmp_path: Path, how: str) -> None:
    state = tmp_path / "state"
    store = await open_pins(state)
    await store.create(PIN)
    await store.close()
    for path in home(state).iterdir():
        if how != "all but the lock" or path.name != "lock":
            path.unlink()
    if how == "directory":
        home(state).rmdir()
    before = sorted(state.rglob("*"))
    with pytest.raises(UnsafeState, match="lost"):
        await open_pins(state)
    assert [path for path in sorted(state.rglob("*")) if path.name != "lock"] == [
        path for path in before if path.name != "lock"
    ]
    (state / MADE).unlink()  # the operator's word that they are given up
    store = await open_pins(state)
    assert await store.get(PIN.pin_id) is None
    await store.close()


async def test_only_the_store_and_its_witness_are_made_in_the_state_directory(tmp_path: Path) -> None:
    store = await open_pins(tmp_path / "state")
    await asyncio.gather(*(store.create(make_pin(str(n))) for n in range(10)))
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [DIRECTORY, MADE]
    await store.close()
