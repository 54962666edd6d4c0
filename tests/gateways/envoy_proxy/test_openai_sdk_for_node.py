"""The openai SDK for Node through Envoy and Tidegate to a provider: what its user sees."""

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients import BUILD_SECONDS, needs
from tests.gateways.envoy_proxy.support import HEALTHY, UNHEALTHY, Json, World

HERE = Path(__file__).resolve().parent / "node"
BUDGET = 262144
HELLO = {"model": "managed/routine", "messages": [{"role": "user", "content": "hello"}]}
TOO_LONG = {"model": "managed/routine", "messages": [{"role": "user", "content": "x" * BUDGET}]}
COMPACTION = {"x-tidegate-compaction": "true"}


@cache
def installed() -> Path:
    """The program with the SDK that the lock file names."""
    needs("npm", "Node.js 20 or newer with npm")
    lock, done = HERE / "package-lock.json", HERE / "node_modules/.installed"
    if not done.exists() or done.read_bytes() != lock.read_bytes():
        command = ["npm", "ci", "--no-progress", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=HERE, check=True, capture_output=True, timeout=BUILD_SECONDS)
        done.write_bytes(lock.read_bytes())
    return HERE / "sdk.js"


class Sdk:
    """The program before Envoy; each order is one call of the SDK."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, body: Json, thread: str = "thread-1", method: str = "chat", **options: Any) -> Json:
        """One call; what its user sees."""
        headers = {"thread-id": thread, **options.pop("headers", {})}
        self.order({"method": method, "body": body, "headers": headers, **options})
        return self.next()

    def order(self, order: Json) -> None:
        """Begin a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def next(self) -> Json:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the program ended"
        said: Json = json.loads(line)
        return said


@pytest.fixture
def sdk(world: World) -> Iterator[Sdk]:
    """Start the program; end it afterwards."""
    pipe = subprocess.PIPE
    command = ["node", str(installed()), f"{world.url}/v1"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Sdk(process)
        assert process.stdin is not None
        process.stdin.close()


def test_a_binding_is_kept_over_turns_and_over_a_restart(world: World, sdk: Sdk) -> None:
    world.report(qwen=UNHEALTHY, gemma=HEALTHY)
    assert sdk.ask(HELLO) == {"text": "done", "sent": 1}
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    assert sdk.ask(HELLO) == {"text": "done", "sent": 1}
    world.restart()
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    assert sdk.ask(HELLO)["text"] == "done"
    assert sdk.ask({"model": "managed/routine", "input": "hello"}, method="responses")["text"] == "done"
    assert [body["model"] for body in world.gemma.bodies] == ["gemma-4-31b"] * 4
    assert not world.qwen.requests
    assert sdk.ask(HELLO, thread="thread-2")["text"] == "done"
    assert len(world.qwen.requests) == 1


def test_over_budget_is_a_context_length_error_without_a_retry_and_a_compaction_passes(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    error = {"error": "BadRequestError", "status": 400, "type": "invalid_request_error", "sent": 1}
    assert sdk.ask(TOO_LONG) == {**error, "code": "context_length_exceeded"}
    assert sdk.ask(TOO_LONG, headers=COMPACTION) == {**error, "code": "compaction_requires_pin"}
    assert not world.calls()
    assert sdk.ask(HELLO)["text"] == "done"
    assert sdk.ask(TOO_LONG, headers=COMPACTION) == {"text": "done", "sent": 1}
    assert world.qwen.bodies[-1]["messages"] == TOO_LONG["messages"]
    assert world.calls() == 2


def test_a_stopped_engine_is_a_refusal_that_is_retried_and_never_reaches_a_provider(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    assert sdk.ask(HELLO)["text"] == "done"
    world.report(qwen=UNHEALTHY)
    refused = sdk.ask(HELLO, retries=1)
    assert refused == {
        "error": "RateLimitError", "status": 429, "code": "pin_provider_unavailable", "type": "rate_limit_error",
        "sent": 2,
    }  # fmt: skip
    assert world.calls() == 1


def test_a_stream_arrives_as_it_is_made(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    sdk.order({"method": "chat", "body": {**HELLO, "stream": True}, "headers": {"thread-id": "t"}})
    assert sdk.next() == {"first": "待機 "}  # while the provider still holds back the rest
    world.qwen.go_on.set()
    assert sdk.next() == {"chunks": ["待機 ", "two"], "sent": 1}


def test_with_tidegate_down_nothing_is_forwarded(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    world.running.close()
    said = sdk.ask(HELLO, retries=1)
    assert (said["error"], said["status"], said["code"]) == ("InternalServerError", 503, "admission_unavailable")
    assert said["sent"] == 2
    assert not world.calls()
