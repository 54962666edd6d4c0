"""Opening the embedded store of pins, and its files behind its back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
from tidegate_server.stores.owned_files import OwnedDirectory
from tidegate_server.stores.sqlite_home import DATABASE
from tidegate_server.stores.sqlite_pins import CACHE_SIZE, DIRECTORY, SqlitePinStore

KEY = bytes(range(100, 164))


async def open_pins(state: Path, key: bytes = KEY, *, cache_size: int = CACHE_SIZE) -> SqlitePinStore:
    """The store in the state directory `state`."""
    directory = OwnedDirectory.open(state)
    try:
        return await SqlitePinStore.open(directory, key, cache_size=cache_size)
    finally:
        directory.close()


def home(state: Path) -> Path:
    """Where the files of the pins lie."""
    return state / DIRECTORY


@contextmanager
def database(state: Path) -> Iterator[apsw.Connection]:
    """A connection of somebody else to the database; it leaves the write-ahead log where it is."""
    connection = apsw.Connection(str(home(state) / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(5000)
    try:
        yield connection
    finally:
        connection.close()
