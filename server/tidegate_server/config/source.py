"""The configuration that a running server uses, and how it is changed while it runs (§2 of the contract).

No task, signal or lock lives here: whoever runs the server calls `reload` on SIGHUP, and when `changed` says so.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from tidegate_server.config.compile import compile_policy
from tidegate_server.config.load import load
from tidegate_server.config.model import Configuration
from tidegate_server.core.policy import Policy
from tidegate_server.errors import ConfigurationError

RESTART_ONLY: Mapping[str, Callable[[Configuration], object]] = {
    "listen": attrgetter("listen"),
    "insecure": attrgetter("insecure"),
    "reflection": attrgetter("reflection"),
    "stateDirectory": attrgetter("state_directory"),
    "stores": attrgetter("stores"),
    "keys.pins": attrgetter("keys.pins"),
    "admin": attrgetter("admin"),
    "health": attrgetter("health"),
    "tls": attrgetter("tls"),
    "limits.maxMessageBytes": attrgetter("limits.max_message_bytes"),
    "limits.maxConcurrentCalls": attrgetter("limits.max_concurrent_calls"),
    "decisionLog.queue": attrgetter("decision_log.queue"),
}
"""Settings that are read once, at the start. What the files of certificates and of `keys.tracestate` hold is read again
without a restart."""


class _Stamp(NamedTuple):
    """Tells two states of a file apart; the inode does when one replaces the other within the clock's resolution."""

    mtime_ns: int
    size: int
    inode: int


class Loaded(NamedTuple):
    """A good configuration and what was compiled of it, swapped as one."""

    configuration: Configuration
    policy: Policy


class ConfigurationSource:
    """Holds the last good configuration of a file, and takes over another one whole or not at all.

    `error` is what is wrong with the file since the last good load, one fault a line; empty: nothing. `generation`
    counts the configurations that were in use, from 1 on.
    """

    def __init__(
        self,
        path: Path | str,
        environment: Mapping[str, str] | None = None,
        *,
        listen: Sequence[str] = (),
        state_directory: str | None = None,
    ) -> None:
        """Load for the first time, with the arguments of `load`. Raises `ConfigurationError` with every fault."""
        self._path = Path(path)
        self._environment = dict(os.environ if environment is None else environment)
        self._listen = tuple(listen)
        self._state_directory = state_directory
        self._stamp = self._seen = self._look()
        self._loaded = self._load()
        self.generation = 1
        self.error = ""

    @property
    def loaded(self) -> Loaded:
        """The last good configuration and its policy, which belong together."""
        return self._loaded

    @property
    def configuration(self) -> Configuration:
        """The last good configuration."""
        return self._loaded.configuration

    @property
    def policy(self) -> Policy:
        """The last good configuration's policy."""
        return self._loaded.policy

    @property
    def revision(self) -> str:
        """The last good configuration's fingerprint."""
        return self._loaded.policy.revision

    def changed(self) -> bool:
        """Whether the file is another one than at the last load, good or bad, and the same as at the last look.

        A file that is still being written is not read: it has to stand still from one look to the next. One `stat`.
        """
        seen, self._seen = self._seen, self._look()
        return self._seen == seen != self._stamp

    def reload(self) -> bool:
        """Load again, and swap if all of it is good; return whether it was.

        A change of what needs a restart is a fault like any other: nothing of that file is taken over, so that what is
        served is always one file as a whole.
        """
        self._stamp = self._look()
        try:
            loaded = self._load()
            _refuse_restarts(self._loaded.configuration, loaded.configuration)
        except ConfigurationError as bad:
            self.error = str(bad).replace(str(self._path), self._path.name)  # it is shown to operators far away
            return False
        self.error = ""
        if loaded.configuration != self._loaded.configuration:
            self._loaded = loaded
            self.generation += 1
        return True

    def _load(self) -> Loaded:
        configuration = load(self._path, self._environment, listen=self._listen, state_directory=self._state_directory)
        return Loaded(configuration, compile_policy(configuration))

    def _look(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _refuse_restarts(old: Configuration, new: Configuration) -> None:
    changed = [path for path, value in RESTART_ONLY.items() if value(old) != value(new)]
    if changed:
        raise ConfigurationError([f"{path}: is changed, which needs a restart" for path in changed])
