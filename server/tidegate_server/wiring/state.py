"""The state directory: ours alone, one process at a time, with the keys and the token that are made on first use."""

import secrets
from typing import NamedTuple

from tidegate_server.config import Configuration
from tidegate_server.errors import UnsafeState
from tidegate_server.stores.keys import PINS, kept_key, read_key
from tidegate_server.stores.owned_files import OwnedDirectory
from tidegate_server.stores.sqlite_pins import DIRECTORY as PINS_DIRECTORY

LOCAL_TOKEN = "local.token"  # noqa: S105 - the name of the file
TOKEN_BYTES = 32
TRACESTATE = "tracestate.key"
FLOWS_DIRECTORY = "flows"
"""Where the embedded flow store lies; hops that it holds were signed with the key that is made before it."""


class State(NamedTuple):
    """The opened directory and what a server reads from it once."""

    directory: OwnedDirectory
    pin_key: bytes
    tracestate_keys: tuple[bytes, ...]
    local_token: str


def open_state(configuration: Configuration, *, lock: bool = True) -> State:
    """Open and lock the directory; make the pins' key and the local token if this is the first start.

    A worker does not lock it: its supervisor holds the lock for all of them.

    Raises UnsafeState when anything in it is not as it must be, or another process has it.
    """
    directory = OwnedDirectory.open(configuration.state_directory)
    if lock:
        directory.lock()
    named = configuration.keys.pins
    key = read_key(named) if named is not None else kept_key(directory, PINS, before=PINS_DIRECTORY)
    tracestate = tracestate_keys(configuration, directory)
    return State(directory, key, tracestate, "" if configuration.identities else _local_token(directory))


def tracestate_keys(configuration: Configuration, directory: OwnedDirectory) -> tuple[bytes, ...]:
    """The keys that hops are signed with: the configured files', else the one that is made in the directory.

    Raises UnsafeState.
    """
    named = tuple(read_key(path) for path in configuration.keys.tracestate)
    return named or (kept_key(directory, TRACESTATE, before=FLOWS_DIRECTORY),)


def _local_token(directory: OwnedDirectory) -> str:
    """The token of §13: whoever can read it, can feed facts and spend; so it belongs to one user."""
    if not directory.exists(LOCAL_TOKEN):
        try:
            directory.write_file(LOCAL_TOKEN, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")
        except OSError as error:
            raise UnsafeState(f"{directory.path / LOCAL_TOKEN}: cannot be made ({error.strerror})") from error
    token = directory.read_file(LOCAL_TOKEN).decode("ascii", "replace").strip()
    if not token:
        raise UnsafeState(f"{directory.path / LOCAL_TOKEN}: is empty; remove it, and a new token is made at the start")
    return token
