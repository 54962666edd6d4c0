"""`python -m tidegate_server.stores.backup STATE_DIRECTORY TO`: copy the pins, of a running or a stopped server.

What it writes is a state directory of its own: to restore, put it in the old one's place (docs/backup.md).
"""

import argparse
import os
import sys
from pathlib import Path

import apsw

from tidegate_server.errors import UnsafeState
from tidegate_server.stores.keys import PINS
from tidegate_server.stores.marker import Marker
from tidegate_server.stores.owned_files import OwnedDirectory
from tidegate_server.stores.sqlite_home import backup
from tidegate_server.stores.sqlite_pins import DIRECTORY, HOLDS


def back_up(state: Path, to: Path) -> None:
    """Copy the pins and, where it is kept beside them, their key into the new directory `to`.

    UnsafeState when the original is not safe to read, OSError or apsw.Error when it cannot be copied.
    """
    source = OwnedDirectory.open(state, make=False)
    try:
        pins = source.subdirectory(DIRECTORY, make=False)
        try:
            marker = Marker.read(pins, HOLDS)
            if marker is None:
                raise UnsafeState(f"{pins.path}: there is no marker, so there are no pins to copy")
            os.mkdir(to, 0o700)  # noqa: PTH102 - it must not be there yet
            target = OwnedDirectory.open(to, make=False)
            try:
                if source.exists(PINS):
                    target.write_file(PINS, source.read_file(PINS))
                backup(pins, marker, HOLDS, target.path / DIRECTORY)
            finally:
                target.close()
                marker.close()
        finally:
            pins.close()
    finally:
        source.close()


def main() -> int:
    """The command: 0 when the copy is whole, 1 when there is none."""
    parser = argparse.ArgumentParser(prog="python -m tidegate_server.stores.backup", description="Copy the pins.")
    parser.add_argument("state_directory", type=Path)
    parser.add_argument("to", type=Path, help="a new directory for the copy")
    arguments = parser.parse_args()
    try:
        back_up(arguments.state_directory, arguments.to)
    except (UnsafeState, OSError, apsw.Error) as error:
        sys.stderr.write(f"no backup: {error}\n")
        return 1
    sys.stdout.write(f"copied to {arguments.to}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
