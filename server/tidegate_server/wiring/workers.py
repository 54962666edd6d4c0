"""`--workers N`: processes that share the port, and the supervisor that keeps them alive (§12 of the contract).

Each worker is a process of its own from the start, spawned and not forked, so that none inherits a connection, a thread
or a lock. The kernel spreads connections over them (SO_REUSEPORT). The supervisor holds the port, so that no other
server can share it by accident, and the state directory's lock; it starts a worker that died again, ends one whose
event loop has stood still, and is the only one to read the configuration file: workers read the last good copy of it,
all at the same moment, so that there is one policy fingerprint at any time, also for a worker that is started later.
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tidegate_server.config import Address, ConfigurationSource, load
from tidegate_server.core.model import SECOND
from tidegate_server.errors import ConfigurationError, TidegateError
from tidegate_server.wiring.state import State, open_state

BEAT_SECONDS = 0.5
"""How often a worker says that its event loop turns."""

HUNG_SECONDS = 5.0
"""After so long without a word a worker is ended with kill -9, and started again."""

START_SECONDS = 20.0
RELOAD_SECONDS = 1.0
AHEAD_SECONDS = 0.3
"""How long after it was announced a new configuration is taken over: by then every worker has read it."""

READY, ALIVE = b"r", b"."
_LONGEST_BACKOFF = 5.0

log = logging.getLogger("tidegate.workers")


class CannotSupervise(TidegateError):
    """The workers cannot be run like this."""


class _Worker:
    """One process and the pipe on which it says that it lives."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.ready = False
        self.heard = self.started = time.monotonic()
        self.beats, writing = os.pipe()
        os.set_blocking(self.beats, False)
        self.process = subprocess.Popen([*command, str(writing)], pass_fds=[writing])  # noqa: S603 - our own command
        os.close(writing)

    def listen(self) -> None:
        """Take in what it said."""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self.beats, 4096)
            if said:
                self.heard = time.monotonic()
                self.ready = self.ready or READY in said

    def is_hung(self, now: float) -> bool:
        """Whether it has been silent for too long."""
        return now - self.heard > (HUNG_SECONDS if self.ready else START_SECONDS)

    def close(self) -> None:
        """Let go of the pipe of a process that has ended."""
        os.close(self.beats)


class Supervisor:
    """Runs `count` workers under one configuration."""

    def __init__(self, source: ConfigurationSource, config: Path, count: int, log_level: str) -> None:
        self._source = source
        self._config = config
        self._count = count
        self._log_level = log_level
        self._stopping = False
        self._reload = False
        self._workers: list[_Worker] = []
        self._backoff: dict[int, tuple[float, float]] = {}
        self._directory = source.configuration.state_directory / "workers"

    def run(self, started: Callable[[Sequence[Address]], None]) -> int:
        """Serve until SIGTERM or SIGINT; the exit code. Raises TidegateError when it cannot begin."""
        configuration = self._source.configuration
        if not configuration.is_shared:
            raise CannotSupervise("--workers above 1 needs the shared mode: name its stores in the configuration")
        if any(address.path for address in configuration.listen):
            raise CannotSupervise("--workers above 1 cannot share a unix socket; listen on a port")
        state = open_state(configuration)
        holders = [_hold(address) for address in configuration.listen]
        addresses = [
            address._replace(port=holder.getsockname()[1])
            for address, holder in zip(configuration.listen, holders, strict=True)
        ]
        try:
            return self._supervise(state, addresses, started)
        finally:
            self._end()
            for holder in holders:
                holder.close()
            state.directory.close()

    def _supervise(
        self, state: State, addresses: Sequence[Address], started: Callable[[Sequence[Address]], None]
    ) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._publish()
        words = {
            "config": str(self._copy),
            "error": str(self._directory / "error"),
            "at": str(self._directory / "at"),
            "listen": [str(address) for address in addresses],
            "state": str(state.directory.path),
            "log": self._log_level,
        }
        self._command = [sys.executable, "-m", "tidegate_server.wiring.worker", json.dumps(words)]
        self._workers = [_Worker(number, self._command) for number in range(self._count)]
        told = False
        looked = time.monotonic()
        while not self._stopping:
            self._listen()
            if not told and all(worker.ready for worker in self._workers):
                told = True
                started(addresses)
            if not told and any(worker.process.poll() is not None for worker in self._workers):
                return 1  # it said why
            self._revive()
            if self._reload or time.monotonic() - looked > RELOAD_SECONDS:
                looked = time.monotonic()
                self._follow()
        log.info("draining")
        return 0

    @property
    def _copy(self) -> Path:
        return self._directory / f"configuration{self._config.suffix}"

    def _listen(self) -> None:
        readable, _, _ = select.select([worker.beats for worker in self._workers], [], [], BEAT_SECONDS / 2)
        for worker in self._workers:
            if worker.beats in readable:
                worker.listen()
        if readable and not any(worker.process.poll() is None for worker in self._workers):
            time.sleep(BEAT_SECONDS / 2)  # pipes of the dead are always readable

    def _revive(self) -> None:
        now = time.monotonic()
        for place, worker in enumerate(self._workers):
            if worker.process.poll() is None and worker.is_hung(now):
                log.error("worker %d has stood still for %.0f s; it is ended", worker.number, now - worker.heard)
                worker.process.kill()
                worker.process.wait()
            if worker.process.poll() is None:
                continue
            wait, until = self._backoff.get(worker.number, (0.05, 0.0))
            if now - worker.started > _LONGEST_BACKOFF:
                wait = 0.05
            if now < until:
                continue
            log.error("worker %d ended with %s; it is started again", worker.number, worker.process.returncode)
            self._backoff[worker.number] = (min(2 * wait, _LONGEST_BACKOFF), now + wait)
            worker.close()
            self._workers[place] = _Worker(worker.number, self._command)

    def _follow(self) -> None:
        """Take a changed file over, or tell the workers what is wrong with it."""
        asked, self._reload = self._reload, False
        if not asked and not self._source.changed():
            return
        if not self._source.reload():
            log.error("the configuration was not taken over, the last good one serves:\n%s", self._source.error)
        self._publish()
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGHUP)

    def _publish(self) -> None:
        """Put down what the workers are to read: the last good file, what is wrong with a newer one, and when."""
        if not self._source.error:
            self._copy_file()
        _write(self._directory / "error", self._source.error.encode())
        _write(self._directory / "at", str(time.monotonic_ns() + int(AHEAD_SECONDS * SECOND)).encode())

    def _copy_file(self) -> None:
        """Copy the file that was just found good, and not one that has taken its place meanwhile and is bad."""
        candidate = self._directory / f"candidate{self._config.suffix}"
        _write(candidate, self._config.read_bytes())
        with contextlib.suppress(ConfigurationError):
            load(candidate)
            candidate.replace(self._copy)

    def _end(self) -> None:
        """Drain all workers at once: each says NOT_SERVING first, and ends when its calls have."""
        grace = self._source.configuration.drain_grace / SECOND + 5.0
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers:
            try:
                worker.process.wait(grace)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.close()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stopping = True

    def _on_reload(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._reload = True


def _hold(address: Address) -> socket.socket:
    """Bind the address for the workers to share, and never to listen on it.

    First without SO_REUSEPORT: that fails where anybody has the port, another instance of this server included.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise CannotSupervise(f"{address}: cannot listen there; is another server running on it?") from error
        port = probe.getsockname()[1]
    holder = socket.socket(family)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        holder.bind((address.host, port))
    except OSError as error:
        holder.close()
        raise CannotSupervise(f"{address}: cannot listen there; is another server running on it?") from error
    return holder


def _write(path: Path, content: bytes) -> None:
    """Replace the file as a whole; nobody reads half of it, and nobody else reads it at all."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    new.replace(path)


class CopiedSource(ConfigurationSource):
    """A worker's configuration: the supervisor's copy, which is good, and what it says is wrong with a newer file."""

    def __init__(self, words: dict[str, Any]) -> None:
        super().__init__(words["config"], listen=words["listen"], state_directory=words["state"])
        self._error = Path(words["error"])
        self._at = Path(words["at"])
        self.error = self._error.read_text(encoding="utf-8")

    @property
    def takes_over_at(self) -> int:
        """The instant, on the machine's monotonic clock, at which all workers take the copy over."""
        return int(self._at.read_text(encoding="ascii"))

    def changed(self) -> bool:
        """Never by itself: the supervisor says when."""
        return False

    def reload(self) -> bool:
        """Take the copy over; False when the newer file was bad, so that its faults show."""
        taken = super().reload()
        self.error = self._error.read_text(encoding="utf-8") or self.error
        return taken and not self.error
