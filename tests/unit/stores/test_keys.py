"""Key files: made once, then never again; refused when anybody else could know or change them."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidegate_server.errors import UnsafeState
from tidegate_server.stores.keys import kept_key, read_key
from tidegate_server.stores.owned_files import OwnedDirectory


@pytest.fixture
def state(tmp_path: Path) -> Iterator[OwnedDirectory]:
    directory = OwnedDirectory.open(tmp_path / "state")
    yield directory
    directory.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


def test_a_key_is_made_once_and_for_us_alone(state: OwnedDirectory) -> None:
    made = kept_key(state, "pins.key", before="pins")
    assert len(made) == 64
    assert kept_key(state, "pins.key", before="pins") == made
    assert kept_key(state, "other.key", before="other") != made
    assert stat.S_IMODE((state.path / "pins.key").stat().st_mode) == 0o600


def test_a_key_that_is_missing_beside_what_it_sealed_is_lost(state: OwnedDirectory) -> None:
    state.subdirectory("pins").close()
    with pytest.raises(UnsafeState, match="the key is missing"):
        kept_key(state, "pins.key", before="pins")
    assert not state.exists("pins.key")


def test_a_named_key_counts_byte_for_byte(file: Path) -> None:
    assert read_key(file) == bytes(range(32))
    file.write_bytes(bytes(range(32)) + b"\n")
    assert read_key(file) == bytes(range(32)) + b"\n"


def link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


HURTS: list[tuple[str, Callable[[Path], object]]] = [
    ("32 to 4096 bytes, this one 0", lambda path: path.write_bytes(b"")),
    ("32 to 4096 bytes, this one 31", lambda path: path.write_bytes(bytes(range(31)))),
    ("this one more than 4096", lambda path: path.write_bytes(os.urandom(4097))),
    ("no random key", lambda path: path.write_bytes(bytes(64))),
    ("no random key", lambda path: path.write_bytes(b"secret" * 10)),
    ("0640", lambda path: path.chmod(0o640)),
    ("0604", lambda path: path.chmod(0o604)),
    ("2 hard links", lambda path: os.link(path, path.with_name("other"))),
    ("cannot be opened", lambda path: path.unlink()),
    ("symbolic link", link),
    ("named pipe", fifo),
    ("directory", directory),
]


@pytest.mark.parametrize(("words", "hurt"), HURTS)
def test_an_unsafe_key_is_refused(file: Path, words: str, hurt: Callable[[Path], object]) -> None:
    hurt(file)
    with pytest.raises(UnsafeState, match=words):
        read_key(file)
    if words != "cannot be opened":
        kept = file.parent / "state"
        kept.mkdir(mode=0o700)
        file.rename(kept / "pins.key")
        state = OwnedDirectory.open(kept)
        with pytest.raises(UnsafeState):
            kept_key(state, "pins.key", before="pins")
        state.close()
