"""`tidegate serve` and `tidegate collect` as processes of their own, on the machine's clocks."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tidegate import AsyncClient
from tidegate.v1 import types_pb2

from tests.integration.collectors.conftest import StandIn, local

TIDEGATE = (sys.executable, "-c", "import sys; from tidegate_server.cli import main; sys.exit(main())")
PAGE = 'vllm:num_requests_running{model_name="e"} 0\n'


class Processes:
    """A server and a collecting process in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"unix:{directory}/s"
        self._running: list[Process] = []

    async def start(self, *arguments: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *TIDEGATE, *arguments, cwd=self.directory, stdout=asyncio.subprocess.DEVNULL
        )
        self._running.append(process)
        return process

    async def serve(self) -> Process:
        state = str(self.directory / "state")
        config = {"listen": self.address, "stateDirectory": state, "providers": {"p": local("e")}}
        (self.directory / "tidegate.json").write_text(json.dumps(config))
        return await self.start("serve", "--config", "tidegate.json")

    async def collect(self, url: str, **more: Any) -> Process:
        entry = {"preset": "vllm", "provider": "p", "url": url, "every": "1s"}
        config = {"server": self.address, "collectors": [entry], **more}
        (self.directory / "collectors.json").write_text(json.dumps(config))
        return await self.start("collect", "--config", "collectors.json")

    async def stop(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    made = Processes(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def engine() -> AsyncIterator[StandIn]:
    async with contextlib.AsyncExitStack() as stack:
        made = StandIn()
        await made.start(stack)
        made.serve("/health", b"")
        made.serve("/metrics", PAGE)
        yield made


async def until(client: AsyncClient, condition: Callable[[list[types_pb2.Fact]], bool], within: float) -> None:
    """Look at what the server knows until a condition holds."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(Exception):
                if condition(list((await client.capacity()).facts)):
                    return
            await asyncio.sleep(0.1)


def fresh(facts: list[types_pb2.Fact]) -> bool:
    return bool(facts) and all(fact.freshness == types_pb2.FRESHNESS_FRESH for fact in facts)


async def test_two_commands_feed_facts_and_end_well(processes: Processes, engine: StandIn) -> None:
    await processes.serve()
    collector = await processes.collect(engine.url)
    # The token is found by itself: both processes were started in the same directory.
    async with AsyncClient(processes.address, token_file=processes.directory / "state/local.token") as client:
        await until(client, fresh, 30)
    collector.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(collector.wait(), 15) == 0


@pytest.mark.soak
async def test_a_collector_that_is_stopped_lets_its_facts_go_stale_and_loses_its_stream(
    processes: Processes, engine: StandIn
) -> None:
    await processes.serve()
    collector = await processes.collect(engine.url)
    async with AsyncClient(processes.address, token_file=processes.directory / "state/local.token") as client:
        await until(client, fresh, 30)
        os.kill(collector.pid, signal.SIGSTOP)
        await until(client, lambda facts: facts[0].freshness == types_pb2.FRESHNESS_STALE, 20)
        await asyncio.sleep(30)  # what is tested is the real keepalive of two real processes
        os.kill(collector.pid, signal.SIGCONT)
        await until(client, fresh, 20)
