"""Replicas of the shared mode: as processes, the way people run them, and within a test, to look inside."""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tidegate import AsyncClient
from tidegate.retry import RetryPolicy
from tidegate.v1 import flow_pb2, types_pb2
from tidegate_server.config import ConfigurationSource
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import Running, start

from tests.support import servers

ROUTE = "managed/routine"
CONFIG: dict[str, Any] = {
    "providers": {
        "qwen": {"kind": "local", "credential": "none", "models": {"qwen-next": {"contextWindow": 131072}}},
        "claude": {
            "kind": "subscription",
            "credential": "claude-oauth:primary",
            "requiredWindows": ["5h"],
            "models": {"sonnet": {"contextWindow": 200000}},
        },
        "codex": {
            "kind": "subscription",
            "credential": "codex-login:main",
            "requiredWindows": ["5h"],
            "models": {"sol": {"contextWindow": 200000}},
        },
    },
    "managedRouting": {
        "routes": {
            ROUTE: {
                "purpose": "routine",
                "candidates": ["claude/sonnet", "codex/sol"],
                "contextWindow": 32768,
                "maxContextBytes": 262144,
            }
        }
    },
    "coldWait": "0.5s",
}
TIDEGATE = str(Path(sys.executable).parent / "tidegate")


class Place:
    """Where the replicas of one test live: one database, one Valkey, keys of their own."""

    def __init__(self, directory: Path, *, durable: str, live: str) -> None:
        self.directory = directory
        self.durable = durable
        self.live = live
        for name in ("pins.key", "tracestate.key"):
            file = directory / name
            if not file.exists():
                file.write_bytes(secrets.token_bytes(64))
                file.chmod(0o600)

    @classmethod
    def shared(cls, directory: Path) -> "Place":
        """On the servers that all tests of this process share, emptied."""
        postgres, valkey = servers.postgres(), servers.valkey()
        with valkey.client() as client:
            client.flushall()
        return cls(directory, durable=postgres.dsn(postgres.migrated_database()), live=valkey.url())

    def write(self, name: str, **settings: Any) -> Path:
        """The configuration of the replica `name`, with a state directory of its own."""
        home = self.directory / name
        home.mkdir(mode=0o700, exist_ok=True)
        file = home / "tidegate.json"
        own = {
            "listen": "127.0.0.1:0",
            "admin": {"listen": "127.0.0.1:0"},
            "stateDirectory": str(home / "state"),
            "stores": {"durable": self.durable, "live": self.live},
            "keys": {
                "pins": str(self.directory / "pins.key"),
                "tracestate": [str(self.directory / "tracestate.key")],
            },
        }
        new = file.with_suffix(".new")
        new.write_text(json.dumps({**own, **CONFIG, **settings}))
        new.replace(file)
        return file


def environment() -> dict[str, str]:
    """This process's, without what a user may have set for Tidegate."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


class Process:
    """A running `tidegate serve`."""

    def __init__(self, config: Path, *arguments: str) -> None:
        self.config = config
        self.token_file = config.parent / "state" / "local.token"
        self.log = config.parent / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [TIDEGATE, "serve", "--config", str(config), *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.process.wait(20)
            self.process.stdout.close()
            raise AssertionError(f"it did not start: {line}{self.log.read_text()[-3000:]}")
        self.address = line.removeprefix("listening on ").strip().split(", ")[0]

    def client(self, **options: Any) -> AsyncClient:
        """A client with the local token, on a connection that it shares with nobody."""
        return AsyncClient(self.address, token_file=self.token_file, **options)

    def workers(self) -> list[int]:
        """The ids of the worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(30)


@contextlib.contextmanager
def replica(config: Path, *arguments: str) -> Iterator[Process]:
    """A server process that is gone afterwards."""
    process = Process(config, *arguments)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.terminate()
            try:
                process.process.wait(30)
            except subprocess.TimeoutExpired:
                process.process.kill()
                process.process.wait()
        assert process.process.stdout is not None
        process.process.stdout.close()


class Inside:
    """A replica within this process."""

    def __init__(self, running: Running, client: AsyncClient, token_file: Path) -> None:
        self.running = running
        self.client = client
        self._token_file = token_file

    def patient_client(self) -> AsyncClient:
        """A client that tries again: for what only prepares a test, on a machine that may be busy."""
        return AsyncClient(str(self.running.addresses[0]), token_file=self._token_file, timeout=20)


@contextlib.asynccontextmanager
async def inside(config: Path) -> AsyncIterator[Inside]:
    """Start one; it is stopped afterwards."""
    async with AsyncExitStack() as stack:
        running = await start(ConfigurationSource(config, {}), SystemClock(), stack)
        token = config.parent / "state" / "local.token"
        once = RetryPolicy(attempts=1)  # what the server answers, and not what a patient client makes of it
        address = str(running.addresses[0])
        client = await stack.enter_async_context(AsyncClient(address, token_file=token, retry=once))
        yield Inside(running, client, token)


def quota(provider: str, percent: float, window: str = "5h", **fields: Any) -> types_pb2.Observation:
    """A quota fact of now."""
    observation = types_pb2.Observation(provider=provider, **fields)
    observation.age.FromNanoseconds(0)
    observation.quota.window = window
    observation.quota.remaining_percent = percent
    return observation


def hop(trace_id: str, caller: str, target: str, tracestate: str = "", reserve: int = 0) -> flow_pb2.EnterHopRequest:
    """A hop of that trace."""
    return flow_pb2.EnterHopRequest(
        traceparent=f"00-{trace_id}-00f067aa0ba902b7-01",
        tracestate=tracestate,
        caller_agent=caller,
        target_agent=target,
        reserve_tokens=reserve,
    )


async def until(seen: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Ask again and again until it is so; how long that took."""
    begun = time.monotonic()
    while not await seen():
        assert time.monotonic() - begun < seconds, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - begun
