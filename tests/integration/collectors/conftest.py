"""A real server, real collectors and stand-in providers on loopback, all on one clock that moves when it is told to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from tidegate import AsyncClient
from tidegate.v1 import types_pb2
from tidegate_collectors.config import check
from tidegate_collectors.poll import Fetcher
from tidegate_collectors.service import Service
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.model import SECOND
from tidegate_server.testing import FakeClock
from tidegate_server.wiring.run import start

VECTORS = Path(__file__).parents[2] / "vectors/signals"
TURNS = 400
"""Looks at a condition before a test gives up: some seconds of real time, in which sockets do what they do."""


class SharedClock:
    """The server's clock as a collector reads it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.monotonic() / SECOND

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall() / SECOND, UTC)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(int(seconds * SECOND))


class StandIn:
    """A provider on loopback. Each path has one raw answer; what it has none for is 404."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.shown: list[str] = []
        self.hold = False
        """While true, answers begin and never end: the half-dead endpoint."""
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        stack.callback(self._server.close)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def serve(self, path: str, body: bytes | str, status: str = "200 OK", headers: str = "") -> None:
        """Answer a path with a body; a sample that is a raw response already is taken as it is."""
        content = body.encode() if isinstance(body, str) else body
        if content.startswith(b"HTTP/"):
            head, _, content = content.replace(b"\r\n", b"\n").partition(b"\n\n")
            lines = head.decode().splitlines()
        else:
            lines = [f"HTTP/1.1 {status}", *headers.splitlines()]
        lines += [f"content-length: {len(content)}", "connection: close"]
        self.pages[path] = ("\r\n".join(lines) + "\r\n\r\n").encode() + content

    def sample(self, path: str, name: str) -> None:
        """Answer a path with a sample of the signal vectors."""
        self.serve(path, (VECTORS / "samples" / name).read_bytes())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            path = head[0].split()[1]
            self.asked.append(path)
            self.shown += [line.partition(": ")[2] for line in head if line.lower().startswith("authorization:")]
            page = self.pages.get(path, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.write(page[:30] if self.hold else page)
            await writer.drain()
            while self.hold:
                await asyncio.sleep(0.01)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class World:
    """One server, one collecting process, one stand-in."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.clock = FakeClock()
        self.provider = StandIn()
        self.client: AsyncClient
        self.service: Service
        self.address = f"unix:{directory}/server.sock"
        self.config: dict[str, Any] = {}
        self._directory = directory
        self._stack = stack
        self._server: AsyncExitStack | None = None

    @property
    def token(self) -> Path:
        return self._directory / "state" / "local.token"

    async def serve(self, providers: dict[str, Any], routes: dict[str, Any] | None = None) -> None:
        """Start the server."""
        self.config = {
            "listen": self.address,
            "stateDirectory": str(self._directory / "state"),
            "providers": providers,
            "managedRouting": {"routes": routes or {}},
        }
        path = self._directory / "tidegate.json"
        path.write_text(json.dumps(self.config))
        await self.restart()
        self.client = await self._stack.enter_async_context(AsyncClient(self.address, token_file=self.token))

    async def restart(self) -> None:
        """Start the server, or stop it and start it again: its facts are gone."""
        await self.stop()
        self._server = await self._stack.enter_async_context(AsyncExitStack())
        await start(ConfigurationSource(self._directory / "tidegate.json", {}), self.clock, self._server)

    async def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            await self._server.aclose()
            self._server = None

    async def collect(self, *collectors: dict[str, Any], **more: Any) -> None:
        """Start the collecting process."""
        config = check({"collector_id": "test", "collectors": list(collectors), **more})
        clock = SharedClock(self.clock)
        client = await self._stack.enter_async_context(AsyncClient(self.address, token_file=self.token))
        self.service = Service(
            config, client=client, clock=clock, draw=lambda: 0.5, fetcher=Fetcher(clock, lambda: 0.5)
        )
        ready = asyncio.Event()
        task = asyncio.create_task(self.service.run(ready))
        self._stack.push_async_callback(_ended, task)
        await ready.wait()

    async def facts(self) -> list[dict[str, Any]]:
        """Return what the server knows now."""
        return [MessageToDict(fact) for fact in (await self.client.capacity()).facts]

    def readings(self) -> int:
        """Return how many readings all collectors have made."""
        samples = [sample for family in self.service.meters.registry.collect() for sample in family.samples]
        return int(sum(each.value for each in samples if each.name == "tidegate_collector_readings_total"))

    async def wait(self, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Let sockets do their work until what the server knows meets a condition; no simulated time passes."""
        for _ in range(TURNS):
            facts = await self.facts()
            if condition(facts):
                return facts
            await asyncio.sleep(0.005)
        raise AssertionError(f"never met; the server knows {await self.facts()}")

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Let sockets do their work until a condition holds."""
        for _ in range(TURNS):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("never held")

    async def advance(self, seconds: float, *, step: float | None = None) -> None:
        """Let simulated time pass, in steps between which sockets get their turn."""
        left, most = seconds, step or max(1.0, seconds / 100)
        while left > 0:
            step = min(left, most)
            await self.clock.advance(int(step * SECOND))
            await asyncio.sleep(0.005)
            left -= step


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(tmp_path, stack)
        await made.provider.start(stack)
        yield made


def local(*models: str) -> dict[str, Any]:
    """Return a local provider whose engine names are `models`."""
    known = {
        f"m{index}": {"contextWindow": 131072, "reasoningEfforts": ["low"], "engineNames": [name]}
        for index, name in enumerate(models)
    }
    return {"kind": "local", "credential": "none", "models": known}


def account(kind: str, *models: str) -> dict[str, Any]:
    """Return a subscription or a paid account."""
    known = {name: {"contextWindow": 131072, "reasoningEfforts": ["low"]} for name in models or ("some-model",)}
    return {"kind": kind, "credential": "env:KEY", "models": known}


def kind_of(fact: dict[str, Any]) -> str:
    """Return which kind of fact a JSON fact is."""
    return next(name for name in ("health", "quota", "balance", "availability") if name in fact["observation"])


__all__ = ["SharedClock", "StandIn", "World", "account", "kind_of", "local", "types_pb2"]
