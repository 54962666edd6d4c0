"""Key files: secrets that are made once, kept for ever and read at start (§2 `keys`, §5 and §8 of the contract).

The whole content of the file is the key, byte for byte, a final newline included; whoever uses it makes a key of the
size that it needs. A key is made only where nothing can depend on an older one yet: a lost key is an error, never a
new key.
"""

import os
import secrets
import stat
from pathlib import Path

from tidegate_server.errors import UnsafeState
from tidegate_server.stores.owned_files import OwnedDirectory, check_private_file, unsafe

MIN_BYTES = 32
MAX_BYTES = 4096
PINS = "pins.key"
_MADE_BYTES = 64


def kept_key(state: OwnedDirectory, name: str, *, before: str) -> bytes:
    """The key of that name in the state directory; made when neither it nor the entry `before` is there yet.

    `before` names what is sealed under this key and is made after it. If that is there and the key is not, the key is
    lost, and everything under it with it: UnsafeState. Hold the state directory's lock while calling this.
    """
    if not state.exists(name):
        if state.exists(before):
            raise unsafe(
                state.path / name,
                f"the key is missing, and {before} cannot be read without it",
                "Bring the key back from a backup, or name it in the configuration (keys).",
            )
        try:
            state.write_file(name, secrets.token_bytes(_MADE_BYTES))
        except OSError as error:
            raise UnsafeState(f"{state.path / name}: the key cannot be made ({error.strerror})") from error
    descriptor = state.open_file(name, writable=False)
    try:
        return _content(state.path / name, descriptor)
    finally:
        os.close(descriptor)


def read_key(path: Path) -> bytes:
    """A key that the configuration names. UnsafeState unless it is a file of at least 32 bytes that is ours alone.

    One that belongs to root may be readable (not writable) by our group, as secrets are that an orchestrator mounts.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        fault = "it is a symbolic link" if path.is_symlink() else f"it cannot be opened ({error.strerror})"
        raise unsafe(path, fault, "Name the key's file itself, one that the server may read.") from error
    try:
        info = os.fstat(descriptor)
        mounted = info.st_uid == 0 and os.geteuid() != 0 and stat.S_ISREG(info.st_mode) and not info.st_mode & 0o037
        if not mounted:
            check_private_file(path, info)
        return _content(path, descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path, descriptor: int) -> bytes:
    content = os.read(descriptor, MAX_BYTES + 1)
    if not MIN_BYTES <= len(content) <= MAX_BYTES:
        size = len(content) if len(content) <= MAX_BYTES else f"more than {MAX_BYTES}"
        raise unsafe(
            path, f"a key has {MIN_BYTES} to {MAX_BYTES} bytes, this one {size}", "Bring the key back from a backup."
        )
    if len(set(content)) < 8:  # 32 random bytes have fewer than 8 different ones once in 10^40 keys
        raise unsafe(path, "its content is no random key (zeros, or a few bytes repeated)", "Bring the key back.")
    return content
