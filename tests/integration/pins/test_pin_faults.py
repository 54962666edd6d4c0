"""A disk that refuses (§5, §12): what was not stored is never reported as pinned, what was stays readable, and the
store recovers by itself. Real calls fail, by a preloaded library; and a real disk is full where one can be mounted.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate_server.stores.sqlite_home import DATABASE, WAL

from tests.integration.pins.children import Child
from tests.integration.pins.places import home

CANDIDATE = "claude-primary/claude-sonnet-5-5"
UNAVAILABLE = {"unavailable": True}


class Disk:
    """Where a child works, and which of its calls fail."""

    def __init__(self, state: Path, library: Path, rules: Path) -> None:
        self.state = state
        self._rules = rules
        self._library = library

    def start(self) -> Child:
        """A child on this disk."""
        return Child(self.state, LD_PRELOAD=str(self._library), FAULTS=str(self._rules))

    def fail(self, call: str, number: int, suffix: str = "*") -> None:
        """From now on `call` fails with the errno `number` on files whose path ends in `suffix`."""
        draft = self._rules.with_suffix(".new")
        draft.write_text(f"{call} {number} {suffix}")
        draft.rename(self._rules)

    def heal(self) -> None:
        """From now on everything works."""
        self._rules.unlink()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], check=True)
    return built


@pytest.fixture
def disk(tmp_path: Path, library: Path) -> Disk:
    return Disk(tmp_path / "state", library, tmp_path / "rules")


def within_seconds(seconds: float, ask: Callable[[], dict[str, Any]], wanted: dict[str, Any]) -> None:
    """Ask until the wanted answer comes. It is what a caller sees, not a state that a test could be told of."""
    end = time.monotonic() + seconds
    while (answer := ask()) != wanted:
        assert time.monotonic() < end, answer


@pytest.mark.parametrize(
    ("call", "number", "when"),
    [
        ("write", errno.EIO, "later"),
        ("write", errno.ENOSPC, "later"),
        ("write", errno.ENOSPC, "at the first write"),
        ("write", errno.EROFS, "later"),
        ("write", errno.EDQUOT, "at the first write"),
        ("fsync", errno.EIO, "later"),
        ("fsync", errno.EIO, "at the first write"),
        ("fsync", errno.ENOSPC, "later"),
    ],
)
def test_a_failing_write_is_unavailable_and_then_heals(disk: Disk, call: str, number: int, when: str) -> None:
    with disk.start() as child:
        assert child.ask("create old") == {"stored": CANDIDATE, "created": True}
        assert child.finish() == {"closed": True}
    with disk.start() as child:
        if when == "later":
            child.ask("create warm")
        disk.fail(call, number, WAL)
        for _ in range(2):
            assert child.ask("create new") == UNAVAILABLE
        assert child.ask("retire old") == UNAVAILABLE
        status = child.ask("status")
        assert status["healthy"] is False
        assert any(warning.startswith("pins cannot be stored") for warning in status["warnings"])
        assert child.ask("get old") == {"found": CANDIDATE, "retired": False}
        assert child.ask("get new") == {"found": False, "retired": False}
        disk.heal()
        # Nobody has to try: the store itself finds out that the disk is back.
        within_seconds(10, lambda: child.ask("status"), {"healthy": True, "warnings": []})
        assert child.ask("create new") == {"stored": CANDIDATE, "created": True}
        assert child.ask("create new") == {"stored": CANDIDATE, "created": False}
    with disk.start() as child:  # after kill -9
        assert child.ask("get new") == {"found": CANDIDATE, "retired": False}
        assert child.ask("verify")["corrupt"] == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_the_word_that_a_log_must_be_there_is_part_of_the_promise(disk: Disk, call: str, number: int) -> None:
    with disk.start() as child:
        disk.fail(call, number, "/marker")
        assert child.ask("create new") == UNAVAILABLE
        disk.heal()
        assert child.ask("create new") == {"stored": CANDIDATE, "created": True}
    with disk.start() as child:
        assert child.ask("get new") == {"found": CANDIDATE, "retired": False}


@pytest.mark.parametrize(
    ("call", "number", "suffix"),
    [
        ("write", errno.ENOSPC, f"/{DATABASE}"),
        ("fsync", errno.EIO, f"/{DATABASE}"),
    ],
)
def test_a_failing_checkpoint_loses_nothing(disk: Disk, call: str, number: int, suffix: str) -> None:
    with disk.start() as child:
        disk.fail(call, number, suffix)
        assert child.ask("burst 6000") == {"stored": 6000}
        within_seconds(10, lambda: {"warned": bool(child.ask("status")["warnings"])}, {"warned": True})
        assert child.ask("status")["healthy"] is True  # what must be stored is stored
        disk.heal()
        within_seconds(10, lambda: child.ask("status"), {"healthy": True, "warnings": []})
        assert child.ask("verify") == {"checked": 6000, "corrupt": []}
    with disk.start() as child:
        assert child.ask("verify") == {"checked": 6000, "corrupt": []}


def test_a_failing_read_is_unavailable_never_none(disk: Disk) -> None:
    with disk.start() as child:
        child.ask("burst 2000")
        assert child.finish() == {"closed": True}
    with disk.start() as child:
        disk.fail("read", errno.EIO, f"/{DATABASE}")
        assert child.ask("get burst 7") == UNAVAILABLE
        assert child.ask("create burst 7") == UNAVAILABLE
        assert child.ask("status")["healthy"] is False
        disk.heal()
        within_seconds(10, lambda: {"healthy": child.ask("status")["healthy"]}, {"healthy": True})
        assert child.ask("get burst 7") == {"found": CANDIDATE, "retired": False}
        assert child.ask("create burst 7") == {"stored": CANDIDATE, "created": False}


@pytest.mark.parametrize(
    ("call", "number", "suffix"),
    [
        ("write", errno.ENOSPC, "draft.sqlite3"),
        ("fsync", errno.EIO, "draft.sqlite3"),
        ("write", errno.ENOSPC, "marker.new"),
        ("fsync", errno.EIO, "marker.new"),
        ("rename", errno.EIO, "marker"),
        ("rename", errno.ENOSPC, DATABASE),
        ("fsync", errno.EIO, "managed-route-pins"),
        ("write", errno.ENOSPC, "-shm"),
        ("ftruncate", errno.EIO, "-shm"),
    ],
)
def test_a_first_start_that_fails_is_told_and_the_next_one_succeeds(
    disk: Disk, call: str, number: int, suffix: str
) -> None:
    disk.fail(call, number, suffix)
    with disk.start() as child:
        assert "cannot be" in child.greeting["refused"]
    disk.heal()
    with disk.start() as child:
        assert child.greeting == {"ready": True}
        assert child.ask("create new") == {"stored": CANDIDATE, "created": True}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of one MiB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", place], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(path: Path) -> None:
    """Take all the room there is."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_refuses_and_heals(small_disk: Path) -> None:
    state, ballast = small_disk / "state", small_disk / "ballast"
    with Child(state) as child:
        child.ask("create old")
        fill(ballast)
        assert child.ask("burst 50") == UNAVAILABLE
        stored = [name for name in (f"later {n}" for n in range(5)) if child.ask(f"create {name}") != UNAVAILABLE]
        assert stored == []
        assert child.ask("get old") == {"found": CANDIDATE, "retired": False}
        assert child.ask("create old") in ({"stored": CANDIDATE, "created": False}, UNAVAILABLE)
        assert child.ask("status")["healthy"] is False
        ballast.unlink()
        within_seconds(10, lambda: child.ask("status"), {"healthy": True, "warnings": []})
        assert child.ask("create new") == {"stored": CANDIDATE, "created": True}
        checked = child.ask("verify")
        assert checked["corrupt"] == []
        assert child.finish() == {"closed": True}
    with Child(state) as child:
        assert child.ask("verify") == checked
        assert child.ask("get new") == {"found": CANDIDATE, "retired": False}


def test_the_log_stays_short_and_is_folded_in(disk: Disk) -> None:
    with disk.start() as child:
        for _ in range(5):
            child.ask("burst 3000")
        assert (home(disk.state) / WAL).stat().st_size < 64 << 20
        assert child.finish() == {"closed": True}
    assert (home(disk.state) / WAL).stat().st_size == 0
