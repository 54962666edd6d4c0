"""Servers under measurement, each a process of its own on a core of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate import Client
from tidegate.v1 import types_pb2 as types

ROOT = Path(__file__).resolve().parents[2]
SERVER_CORE, LOAD_CORE = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
"""The server has one core, what asks it another; on a machine of one core they share it."""

COMMAND = str(Path(sys.executable).with_name("tidegate"))

TICKS = os.sysconf("SC_CLK_TCK")

Json = dict[str, Any]

SIZE = {"contextWindow": 32768, "maxContextBytes": 262144}
MODEL = {"contextWindow": 131072, "reasoningEfforts": ["low", "high"]}
PAID = "or-deepseek"
CONFIG: Json = {
    "listen": "127.0.0.1:0",
    "admin": {"listen": "127.0.0.1:0"},
    "freshness": dict.fromkeys(("health", "quota", "balance", "availability"), "6h"),
    "providers": {
        "qwen": {"kind": "local", "credential": "none", "sessionAffinity": True, "models": {"next": MODEL}},
        "claude": {
            "kind": "subscription",
            "credential": "claude-oauth:primary",
            "requiredWindows": ["5h", "7d"],
            "models": {"sonnet": MODEL},
        },
        "codex": {"kind": "subscription", "credential": "codex-login:main", "models": {"sol": MODEL}},
        "openrouter": {
            "kind": "paid",
            "credential": "env:OPENROUTER_API_KEY",
            "models": {"deepseek/deepseek-v4-flash": {"alias": PAID, **MODEL}},
        },
    },
    "managedRouting": {
        "routes": {
            "managed/routine": {
                "purpose": "routine",
                "candidates": ["qwen/next", "claude/sonnet", "codex/sol", PAID],
                "allowPaid": True,
                **SIZE,
            }
        }
    },
    "flow": {"maxFanOut": 1_000_000, "maxTokens": 1_000_000_000},
}
"""The contract's example in small: four candidates. Facts keep for the time of a measurement."""


class Server:
    """A running server process."""

    def __init__(
        self, command: Sequence[str], state: Path | None = None, cores: Collection[int] = (SERVER_CORE,)
    ) -> None:
        self.state = state
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        os.sched_setaffinity(self._process.pid, cores)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"{command[:4]} did not start")
        self.address = line.removeprefix("listening on ").split(",")[0].strip()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def cpu(self) -> float:
        """Seconds of processor time that it has used, in all its threads and its workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        used = 0
        for pid in (self.pid, *children):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        return used / TICKS

    def stop(self) -> None:
        """Stop it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def client(self) -> Client:
        """A client with every role."""
        assert self.state is not None
        return Client(self.address, token_file=self.state / "local.token", timeout=60)


@contextlib.contextmanager
def tidegate(directory: Path, config: Json = CONFIG, *, workers: int = 1) -> Iterator[Server]:
    """The product, started as its users start it, with all four candidates eligible. Each worker has a core."""
    state, file = directory / "state", directory / "tidegate.json"
    file.write_text(json.dumps({"stateDirectory": str(state), **config}))
    command = [COMMAND, "serve", "--config", str(file), "--log-level", "error"]
    cores = (SERVER_CORE, LOAD_CORE)[:workers]
    server = Server([*command, "--workers", str(workers)], state, cores)
    try:
        with server.client() as client:
            refused = [item for item in client.report_capacity("bench", facts()) if item.reason]
            assert not refused, refused[0]
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def equal(directory: Path, method: str, answer: bytes) -> Iterator[Server]:
    """The equal handler of `method`."""
    file = directory / f"answer-{method.rpartition('/')[2]}"
    file.write_bytes(answer)
    server = Server([sys.executable, "-m", "tests.bench.equal", method, str(file)])
    try:
        yield server
    finally:
        server.stop()


def facts(provider: str = "") -> list[types.Observation]:
    """Observations that make every candidate eligible; of one provider, if it is named."""
    all_of_them = [
        types.Observation(provider="qwen", health=types.Health(state=types.HEALTH_STATE_HEALTHY, running=3, waiting=0)),
        *(_quota("claude", window, 80) for window in ("5h", "7d")),
        *(_quota("codex", window, 70) for window in ("5h", "7d")),
        types.Observation(provider="openrouter", balance=types.Balance(currency="USD", amount="12.50", available=True)),
    ]
    for observation in all_of_them:
        observation.age.SetInParent()
    return [observation for observation in all_of_them if provider in ("", observation.provider)]


def _quota(provider: str, window: str, percent: float) -> types.Observation:
    return types.Observation(provider=provider, quota=types.Quota(window=window, remaining_percent=percent))
