"""Whatever a provider does, SelectAgent answers in its caller's time, and says at which stage it fell and why."""

import json
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.v1 import selection_pb2 as wire
from tidegate_server.core.model import SECOND
from tidegate_server.core.selection.model import SelectionSettings, StageDeadlines

from tests.integration.selection.openai_standin import (
    Behaviour,
    Json,
    Reply,
    StandIn,
    choose,
    completion,
    embeddings,
    offered,
    reply,
)
from tests.integration.selection.serving import SHORT, fleet, serving

Ask = wire.SelectAgentRequest
QUERY = "who handles subject12 for people"
BEST = "agent-012"
HISTORY = [wire.Turn(role="user", content="subject12")]


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    async with StandIn() as standin:
        yield standin


def say(content: object, **rest: Any) -> Behaviour:
    return lambda _: reply(completion(content, **rest))


def fixed(said: Reply) -> Behaviour:
    return lambda _: said


def around(payload: Json, before: str, after: str) -> Reply:
    text = json.dumps({"agent_id": offered(payload)[-1], "reasoning": "r"})
    return reply(completion(before + text + after))


def twice(payload: Json) -> Reply:
    first, last = offered(payload)[0], offered(payload)[-1]
    return reply(completion(f'{{"agent_id": "{first}", "agent_id": "{last}", "reasoning": "r"}}'))


def not_a_number(payload: Json) -> Reply:
    return reply(completion(f'{{"agent_id": "{offered(payload)[-1]}", "reasoning": "r", "score": NaN}}'))


def spelled(change: str) -> Behaviour:
    return lambda payload: choose(change.format(offered(payload)[-1], offered(payload)[-1].upper()))(payload)


def left_out(payload: Json) -> Reply:
    known = {agent.agent_id for agent in fleet(20)}
    return choose(min(known.difference(offered(payload))))(payload)


CHAT: dict[str, Behaviour] = {
    "unknown id": choose("agent-999"),
    "an id that the shortlist left out": left_out,
    "two ids in prose": say("Either agent-012 or agent-003 could do it."),
    "space before": spelled(" {0}"),
    "space after": spelled("{0} "),
    "upper case": spelled("{1}"),
    "a longer id": spelled("{0}-2"),
    "a name": choose("Helper 012"),
    "empty id": choose(""),
    "content null": say(None),
    "content empty": say(""),
    "JSON in the reasoning field": say(None, reasoning_content='{"agent_id": "agent-012"}'),
    "refusal": say(None, refusal="I must not"),
    "no choices": fixed(reply({"choices": []})),
    "cut by length": say('{"agent_id": "agent-0', finish="length"),
    "cut JSON": say('{"agent_id": "agent-0'),
    "fenced": lambda p: around(p, "```json\n", "\n```"),
    "prose before": lambda p: around(p, "Sure! ", ""),
    "duplicate keys": twice,
    "NaN": not_a_number,
    "list": say('["agent-012"]'),
    "5 MB": fixed(Reply(b'{"choices": [' + b" " * 5_000_000)),
    "429, retry after an hour": fixed(Reply(status=429, headers=(("retry-after", "3600"),))),
    "500": fixed(Reply(status=500)),
    "404": fixed(Reply(status=404)),
    "redirect": fixed(Reply(status=302, headers=(("location", "/v1/chat/completions"),))),
    "HTML": fixed(Reply(b"<html>busy</html>")),
    "broken off": fixed(Reply(b"{}" * 500, cut=True)),
    "silence": fixed(Reply(hang=True)),
    "drip": fixed(Reply(b"{}" * 500, drip=True)),
}


@pytest.mark.parametrize("behaviour", CHAT.values(), ids=CHAT.keys())
async def test_a_choice_that_is_none_falls_to_the_highest_ranked(
    tmp_path: Path, standin: StandIn, behaviour: Behaviour
) -> None:
    standin.chat = behaviour
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(20))
        await served.stub.SelectAgent(Ask(query=QUERY))  # the fleet is embedded now; what follows is the model alone
        begun = time.monotonic()
        answer = await served.stub.SelectAgent(Ask(query=QUERY, session_id="s"), timeout=2)
        took = time.monotonic() - begun
        (record,) = await served.logged(session_id="s")
    assert answer.agent.agent_id == BEST
    assert answer.fallback_used
    stages = [(stage.degraded, bool(stage.cause)) for stage in answer.stages]
    assert stages == [(False, False), (False, True), (True, True)]
    assert took < 1
    assert record.outcome == "FALLBACK"
    assert record.reason == f"SELECT: {answer.stages[2].cause}"
    detail = json.loads(record.detail_json)
    assert detail["fallback_used"] is True
    assert detail["selection_call"]["cause"] == answer.stages[2].cause
    assert "127.0.0.1" not in record.detail_json


def last_only(change: object) -> Behaviour:
    """A good answer but for the last vector of a batch."""

    def behave(payload: Json) -> Reply:
        answer = embeddings(payload)
        if len(payload["input"]) > 1:
            answer["data"][-1]["embedding"] = change
        return reply(answer)

    return behave


def every(change: object) -> Behaviour:
    def behave(payload: Json) -> Reply:
        answer = embeddings(payload)
        for entry in answer["data"]:
            entry["embedding"] = change
        return reply(answer)

    return behave


EMBEDDING: dict[str, Behaviour] = {
    "503": fixed(Reply(status=503)),
    "401": fixed(Reply(status=401)),
    "429, retry after an hour": fixed(Reply(status=429, headers=(("retry-after", "3600"),))),
    "400 to all": fixed(Reply(status=400)),
    "prose": fixed(Reply(b"no")),
    "no data": fixed(reply({"data": []})),
    "data null": fixed(reply({"data": None})),
    "zero vectors": every([0.0] * 64),
    "NaN vectors": every([math.nan] * 64),
    "empty vectors": every([]),
    "base64 that was not asked for": every("AACAPw=="),
    "wrong dimensions": lambda p: reply(embeddings(p, dimensions=64 if len(p["input"]) == 1 else 63)),
    "another model each time": lambda p: reply(embeddings(p, model=str(len(p["input"])))),
    "20 MB": fixed(Reply(b" " * 20_000_000)),
    "broken off": fixed(Reply(b"{}" * 500, cut=True)),
    "silence": fixed(Reply(hang=True)),
    "drip": fixed(Reply(b"{}" * 500, drip=True)),
}


@pytest.mark.parametrize("behaviour", EMBEDDING.values(), ids=EMBEDDING.keys())
async def test_embeddings_that_are_none_fall_to_word_overlap(
    tmp_path: Path, standin: StandIn, behaviour: Behaviour
) -> None:
    standin.embedding = behaviour
    standin.chat = lambda p: choose(offered(p)[0])(p)
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(20))
        begun = time.monotonic()
        answer = await served.stub.SelectAgent(Ask(query=QUERY, session_id="s", history=HISTORY), timeout=2)
        took = time.monotonic() - begun
        (record,) = await served.logged(session_id="s")
    assert answer.agent.agent_id == BEST
    assert not answer.fallback_used
    assert [stage.degraded for stage in answer.stages] == [True, True, False]
    assert [stage.candidates for stage in answer.stages] == [10, 10, 1]
    assert all(stage.cause for stage in answer.stages[:2])
    assert took < 1
    assert record.reason.startswith(f"SHORTLIST: {answer.stages[0].cause}; RERANK: ")


@pytest.mark.parametrize("behaviour", [last_only([0.0] * 64), last_only(None), last_only([1.0])])
async def test_one_bad_vector_costs_one_agent_its_rank_and_no_more(
    tmp_path: Path, standin: StandIn, behaviour: Behaviour
) -> None:
    standin.embedding = behaviour
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(25))
        answer = await served.stub.SelectAgent(Ask(query=QUERY))
    assert not answer.stages[0].degraded
    assert offered(standin.chat_calls[0])[0] == BEST
    assert "agent-024" not in offered(standin.chat_calls[0])


async def test_a_provider_cap_blank_descriptions_and_a_short_reply(tmp_path: Path, standin: StandIn) -> None:
    short = iter([True])

    def behave(payload: Json) -> Reply:
        if len(payload["input"]) > 10:
            return Reply(status=400)
        answer = embeddings(payload)
        if len(payload["input"]) > 1 and next(short, False):
            answer["data"].pop(0)
        answer["data"].reverse()
        return reply(answer)

    standin.embedding = behave
    agents = fleet(25)
    agents[5].description = ""
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*agents)
        for number in (0, 12, 24):
            await served.stub.SelectAgent(Ask(query=f"who handles subject{number} for people"))
            assert offered(standin.chat_calls[-1])[0] == f"agent-{number:03}"
            assert "agent-005" not in offered(standin.chat_calls[-1])


@pytest.mark.parametrize("timeout", [0.25, 0.6])
async def test_with_everything_silent_the_caller_s_deadline_is_kept(
    tmp_path: Path, standin: StandIn, timeout: float
) -> None:
    patient = SelectionSettings(deadlines=StageDeadlines(2 * SECOND, 2 * SECOND, 10 * SECOND))
    standin.embedding = standin.chat = fixed(Reply(hang=True))
    async with serving(tmp_path / "s", standin, patient) as served:
        await served.register(*fleet(200))
        answer = await served.stub.SelectAgent(Ask(query=QUERY, history=HISTORY), timeout=timeout)
    assert answer.agent.agent_id == BEST
    assert answer.fallback_used
    assert [stage.degraded for stage in answer.stages] == [True, True, True]


async def test_a_session_that_cannot_be_read_costs_the_rerank_and_not_the_query(
    tmp_path: Path, standin: StandIn
) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(20))
        await served.agents._database.do(lambda connection: connection.execute("DROP TABLE turns"))
        answer = await served.stub.SelectAgent(Ask(query=QUERY, session_id="s"))
    assert [stage.degraded for stage in answer.stages] == [False, True, False]
    assert answer.stages[1].cause == "the session's history could not be read"
    assert not answer.fallback_used


async def test_a_store_of_vectors_that_fails_costs_nothing_but_calls(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(20))
        await served.agents._database.do(lambda connection: connection.execute("DROP TABLE vectors"))
        answers = [await served.stub.SelectAgent(Ask(query=QUERY)) for _ in range(2)]
    assert not any(answer.stages[0].degraded for answer in answers)
    assert standin.batches == [1, 20, 1]


def test_the_settings_of_these_tests_leave_room() -> None:
    """Three stages of 200 ms are well within the second that the tests above allow."""
    assert sum((SHORT.deadlines.shortlist, SHORT.deadlines.rerank, SHORT.deadlines.select)) == 3 * SECOND // 5
