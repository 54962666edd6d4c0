"""The openai SDK for Python through Envoy and Tidegate to a provider: what its user sees."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tidegate import Client
from tidegate.v1 import types_pb2

from tests.gateways.envoy_proxy.support import EXAMPLE, HEALTHY, UNHEALTHY, World, until
from tests.gateways.processes import TIDEGATE, process

ROUTE = "managed/routine"
BUDGET = 262144
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
TOO_LONG: list[ChatCompletionMessageParam] = [{"role": "user", "content": "x" * BUDGET}]


class Sdk:
    """An SDK with its usual retries, and how many requests it has sent."""

    def __init__(self, url: str, thread: str) -> None:
        self.sent = 0
        transport = openai.DefaultHttpxClient(event_hooks={"request": [self._count]})
        self.client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="sk-callers-own", default_headers={"thread-id": thread}, http_client=transport
        )

    def _count(self, _: httpx.Request) -> None:
        self.sent += 1

    def ask(self, messages: list[ChatCompletionMessageParam] = HELLO, **headers: str) -> str | None:
        """One turn; what the provider answered."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.chat.completions.create(model=ROUTE, messages=messages, extra_headers=named)
        return answer.choices[0].message.content


@pytest.fixture
def sdk(world: World) -> Iterator[Sdk]:
    """The SDK before Envoy."""
    made = Sdk(world.url, "thread-1")
    with made.client:
        yield made


def test_a_binding_is_kept_over_turns_and_over_a_restart(world: World, sdk: Sdk) -> None:
    world.report(qwen=UNHEALTHY, gemma=HEALTHY)
    assert sdk.ask() == "done"
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    assert sdk.ask() == "done"
    world.restart()
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    assert sdk.ask() == "done"
    assert sdk.client.responses.create(model=ROUTE, input="hello").output_text == "done"
    assert [body["model"] for body in world.gemma.bodies] == ["gemma-4-31b"] * 4
    assert world.gemma.bodies[0]["messages"] == HELLO
    assert not any("sk-callers-own" in str(request.headers) for request in world.gemma.requests)
    assert not world.qwen.requests
    with Sdk(world.url, "thread-2").client as other:
        other.chat.completions.create(model=ROUTE, messages=HELLO)
    assert len(world.qwen.requests) == 1


def test_over_budget_is_the_sdks_own_context_length_error_and_is_not_retried(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    with pytest.raises(openai.BadRequestError) as error:
        sdk.ask(TOO_LONG)
    assert error.value.code == "context_length_exceeded"
    assert error.value.type == "invalid_request_error"
    assert "262 144" in error.value.message
    assert sdk.sent == 1
    assert not world.calls()


def test_a_compaction_passes_on_the_pin_and_within_its_allowance(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    with pytest.raises(openai.BadRequestError) as unbound:
        sdk.ask(TOO_LONG, x_tidegate_compaction="true")
    assert unbound.value.code == "compaction_requires_pin"
    assert sdk.ask() == "done"
    with pytest.raises(openai.BadRequestError):
        sdk.ask(TOO_LONG)
    assert sdk.ask(TOO_LONG, x_tidegate_compaction="true") == "done"
    assert world.qwen.bodies[-1]["messages"] == TOO_LONG
    sdk.client.responses.compact(model=ROUTE, input="x" * BUDGET)
    assert world.qwen.requests[-1].path == "/v1/responses/compact"
    with pytest.raises(openai.BadRequestError) as beyond:
        sdk.ask([{"role": "user", "content": "x" * 4 * BUDGET}], x_tidegate_compaction="true")
    assert beyond.value.code == "context_length_exceeded"
    assert world.calls() == 3


def test_a_stopped_engine_is_a_refusal_that_is_retried_and_never_reaches_a_provider(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    assert sdk.ask() == "done"
    world.report(qwen=UNHEALTHY)
    with pytest.raises(openai.RateLimitError) as error:
        sdk.ask()
    assert error.value.code == "pin_provider_unavailable"
    assert sdk.sent == 1 + 3
    assert world.calls() == 1


def test_an_engine_that_dies_is_noticed_by_its_collector_and_nobody_else_is_called(tmp_path: Path) -> None:
    text = (EXAMPLE / "collectors.yaml").read_text().replace("every: 5s", "every: 1s")
    freshness = {"health": "5s"}
    with World.start(tmp_path, coldWait="2.5s", freshness=freshness) as world, ExitStack() as stack:
        file = tmp_path / "collectors.yaml"
        file.write_text(text.replace(":8000", f":{world.qwen.port}").replace(":8001", f":{world.gemma.port}"))
        options = ["--server", world.server.address, "--token-file", str(world.server.token)]
        stack.enter_context(process([str(TIDEGATE), "collect", "--config", str(file), *options], tmp_path))
        client = stack.enter_context(Client(world.server.address, token_file=world.server.token))

        def eligible() -> bool:
            first = client.capacity(model=ROUTE).evaluations[0]
            return first.verdict == types_pb2.CANDIDATE_VERDICT_ELIGIBLE

        until(eligible)  # the collectors have told
        sdk = Sdk(world.url, "thread-1")
        stack.enter_context(sdk.client)
        assert sdk.ask() == "done"
        world.qwen.stop()
        until(lambda: not eligible())  # the last fact is too old
        with pytest.raises(openai.RateLimitError) as error:
            sdk.client.with_options(max_retries=0).chat.completions.create(model=ROUTE, messages=HELLO)
        assert error.value.code == "pin_provider_unavailable"
        assert len(world.qwen.requests) == 1
        assert not world.gemma.requests


def test_a_worker_that_lost_its_binding_is_told_so_and_not_retried(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    with pytest.raises(openai.APIStatusError) as error:
        sdk.ask(x_tidegate_require_pin="true")
    assert (error.value.status_code, error.value.body) == (410, {**error.value.body, "code": "pin_missing"})  # type: ignore[dict-item]
    assert sdk.sent == 1
    assert not world.calls()


def test_a_stream_arrives_as_it_is_made(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    with sdk.client.chat.completions.create(model=ROUTE, messages=HELLO, stream=True) as stream:
        chunks = iter(stream)
        assert next(chunks).choices[0].delta.content == "待機 "
        assert not world.qwen.go_on.is_set()
        world.qwen.go_on.set()
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["two"]


def test_with_tidegate_down_nothing_is_forwarded(world: World, sdk: Sdk) -> None:
    world.report(qwen=HEALTHY)
    world.running.close()
    with pytest.raises(openai.InternalServerError) as error:
        sdk.client.with_options(max_retries=1).chat.completions.create(model=ROUTE, messages=HELLO)
    assert (error.value.status_code, error.value.code) == (503, "admission_unavailable")
    assert sdk.sent == 2
    assert not world.calls()
