"""`tidegate` as a process of its own, the way that people run it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate import Client

CONFIG: dict[str, Any] = {
    "providers": {
        "qwen": {"kind": "local", "credential": "none", "models": {"qwen-next": {"contextWindow": 131072}}},
    },
    "managedRouting": {
        "routes": {
            "managed/local": {
                "purpose": "routine",
                "candidates": ["qwen/qwen-next"],
                "contextWindow": 32768,
                "maxContextBytes": 262144,
            }
        }
    },
    "coldWait": "0.05s",
}
TIDEGATE = str(Path(sys.executable).parent / "tidegate")
STARTS_WITHIN = 30


def write(directory: Path, name: str = "tidegate.json", **settings: Any) -> Path:
    """A configuration file with a state directory beside it and a free port."""
    path = directory / name
    own = {"listen": "127.0.0.1:0", "admin": {"listen": "127.0.0.1:0"}, "stateDirectory": str(directory / "state")}
    path.write_text(json.dumps({**own, **CONFIG, **settings}))
    return path


def environment() -> dict[str, str]:
    """This process's, without what a user may have set for Tidegate."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [TIDEGATE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )


class Process:
    """A running `tidegate serve`."""

    def __init__(self, config: Path, *arguments: str) -> None:
        self.state = config.parent / "state"
        self._process = subprocess.Popen(
            [TIDEGATE, "serve", "--config", str(config), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            _, complaint = self._process.communicate(timeout=STARTS_WITHIN)
            raise AssertionError(f"it did not start: {line}{complaint}")
        self.address = line.removeprefix("listening on ").strip().split(", ")[0]
        self.token_file = self.state / "local.token"

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def client(self) -> Client:
        """A client with the local token."""
        return Client(self.address, token_file=self.token_file)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self, within: float = 20) -> int:
        """Wait for the process's own end; its exit code."""
        self._process.communicate(timeout=within)
        return self._process.returncode

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate(timeout=20)


@contextlib.contextmanager
def served(config: Path, *arguments: str) -> Iterator[Process]:
    """A server that is gone afterwards, whatever happened."""
    process = Process(config, *arguments)
    try:
        yield process
    finally:
        process.kill()
