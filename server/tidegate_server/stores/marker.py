"""The marker beside a database: it tells "never initialised" from "lost", and "stopped" from "killed" (§5).

A small text that a person can read. `state: open` says that the write-ahead log may hold what the database does not;
`state: clean` that the database alone is whole. The two words are of one length and are written in place, so that
turning them needs no new room on a full disk.
"""

import os
import re
from pathlib import Path

from tidegate_server.stores.owned_files import OwnedDirectory, unsafe, write_all

MARKER = "marker"
_FORMAT = (
    "# Tidegate made this. Without it the server takes the database beside it for lost. Keep it with every copy.\n"
    "format: 1\n"
    "holds: {holds}\n"
    "store: {store}\n"
    "key-check: {key_check}\n"
    "state: {state}\n"
)
_TEXT = re.compile(
    rb"#[ -~]*\nformat: (?P<format>\d+)\nholds: (?P<holds>[a-z]+)\nstore: (?P<store>[0-9a-f]{32})\n"
    rb"key-check: (?P<key_check>[0-9a-f]*)\nstate: (?P<state>open |clean)\n"
)


class Marker:
    """What the marker of a directory says. `store` names the database, `key_check` recognises the key."""

    def __init__(self, descriptor: int, store: str, key_check: bytes, state_at: int, *, is_open: bool) -> None:
        self.store = store
        self.key_check = key_check
        self.is_open = is_open
        self._descriptor = descriptor
        self._state_at = state_at

    @staticmethod
    def make(directory: OwnedDirectory, holds: str, store: str, key_check: bytes) -> None:
        """Put the marker of a new database there, durably."""
        text = _FORMAT.format(holds=holds, store=store, key_check=key_check.hex(), state="clean")
        directory.write_file(MARKER, text.encode("ascii"))

    @classmethod
    def read(cls, directory: OwnedDirectory, holds: str) -> "Marker | None":
        """The marker, None when there is none; UnsafeState when it is not one of ours."""
        if not directory.exists(MARKER):
            return None
        path = directory.path / MARKER
        descriptor = directory.open_file(MARKER)
        try:
            return cls._parse(path, descriptor, holds)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def _parse(cls, path: Path, descriptor: int, holds: str) -> "Marker":
        read = _TEXT.fullmatch(os.read(descriptor, 4096))
        if read is None:
            raise unsafe(path, "its content is damaged", "Bring the directory back from a backup.")
        if read["format"] != b"1":
            raise unsafe(path, f"a later version made it (format {read['format'].decode()})", "Run that version.")
        if read["holds"] != holds.encode():
            raise unsafe(
                path, f"it is the marker of {read['holds'].decode()}, not of {holds}", "Put it back in its place."
            )
        key_check = bytes.fromhex(read["key_check"].decode())
        return cls(
            descriptor, read["store"].decode(), key_check, read.start("state"), is_open=read["state"] != b"clean"
        )

    def set_open(self, value: bool) -> None:
        """Turn the state, durably. OSError when the disk does not take it; what it says then is not known."""
        os.lseek(self._descriptor, self._state_at, os.SEEK_SET)
        write_all(self._descriptor, b"open " if value else b"clean")
        os.fsync(self._descriptor)
        self.is_open = value

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)
