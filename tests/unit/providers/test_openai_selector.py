"""A chat endpoint's answer, read without trust; what it says is judged elsewhere (`core.selection.choice`)."""

from collections.abc import AsyncIterator

import pytest
from tidegate_server.core.selection.choice import ask
from tidegate_server.core.selection.model import Agent, Usage
from tidegate_server.errors import ProviderFailed
from tidegate_server.providers.endpoint import Endpoint
from tidegate_server.providers.openai_selector import OpenAiSelector

from tests.integration.selection.openai_standin import Reply, StandIn, completion, reply

QUESTION = ask("query", [], [Agent("a", "A"), Agent("b", "B")])


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    async with StandIn() as standin:
        yield standin


@pytest.fixture
async def selector(standin: StandIn) -> AsyncIterator[OpenAiSelector]:
    selector = OpenAiSelector(Endpoint(standin.base_url + "/"), "gpt-4o")
    yield selector
    await selector.close()


async def test_the_question_is_a_structured_one(standin: StandIn, selector: OpenAiSelector) -> None:
    answer = await selector.answer(QUESTION)
    (call,) = standin.chat_calls
    assert call["model"] == selector.model == "gpt-4o"
    assert call["temperature"] == 0
    assert call["response_format"]["type"] == "json_schema"
    assert call["response_format"]["json_schema"]["strict"] is True
    assert call["response_format"]["json_schema"]["schema"]["properties"]["agent_id"]["enum"] == ["a", "b"]
    assert answer.usage == Usage(800, 40)
    assert standin.authorizations == {""}


@pytest.mark.parametrize(
    ("said", "cause", "tokens"),
    [
        (reply(completion(None)), "no content", (800, 40)),
        (reply(completion("")), "no content", (800, 40)),
        (reply(completion(" \n")), "no content", (800, 40)),
        (reply(completion(None, reasoning_content='{"agent_id": "a"}')), "no content", (800, 40)),
        (reply(completion([{"type": "text", "text": "{}"}])), "no content", (800, 40)),
        (reply(completion(None, refusal="I cannot")), "refused", (800, 40)),
        (reply(completion('{"agent_id": "a', finish="length")), "cut off", (800, 40)),
        (reply(completion("", finish="content_filter")), "withheld", (800, 40)),
        (reply({"choices": []}), "no choice", (0, 0)),
        (reply({"choices": None, "usage": {"prompt_tokens": 5}}), "no choice", (5, 0)),
        (reply({"choices": ["a"]}), "no choice", (0, 0)),
        (reply({"choices": [{"message": None}]}), "no choice", (0, 0)),
        (reply({"error": "x"}), "no choice", (0, 0)),
        (Reply(b"<html>"), "no JSON", (0, 0)),
        (Reply(b"[]"), "no JSON object", (0, 0)),
        (Reply(b" " * 5_000_000), "over", (0, 0)),
        (Reply(b"{" * 100, cut=True), "broke off", (0, 0)),
        (Reply(status=429, headers=(("retry-after", "3600"),)), "status 429", (0, 0)),
        (Reply(status=500), "status 500", (0, 0)),
        (Reply(status=307, headers=(("location", "http://127.0.0.1:9/"),)), "status 307", (0, 0)),
    ],
)
async def test_a_failure_has_its_cause_and_the_tokens_billed(
    standin: StandIn, selector: OpenAiSelector, said: Reply, cause: str, tokens: tuple[int, int]
) -> None:
    standin.chat = lambda _: said
    with pytest.raises(ProviderFailed) as raised:
        await selector.answer(QUESTION)
    assert cause in raised.value.cause
    assert raised.value.tokens == tokens
    assert len(standin.chat_calls) == 1


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, (0, 0)),
        ([], (0, 0)),
        ({"prompt_tokens": -5, "completion_tokens": True}, (0, 0)),
        ({"prompt_tokens": 1.5, "completion_tokens": "7"}, (0, 0)),
        ({"prompt_tokens": 10**30, "completion_tokens": 3}, (1 << 53, 3)),
    ],
)
async def test_usage_is_a_count_or_nothing(
    standin: StandIn, selector: OpenAiSelector, usage: object, expected: tuple[int, int]
) -> None:
    standin.chat = lambda _: reply({**completion("{}"), "usage": usage})
    assert (await selector.answer(QUESTION)).usage == expected
