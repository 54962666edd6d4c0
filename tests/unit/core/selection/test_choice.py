"""Stage 3: an answer counts only if it names an id on the list, byte for byte."""

import json

import pytest
from tidegate_server.core.selection.choice import REASONING_CHARACTERS, Choice, NoChoice, ask, parse, schema
from tidegate_server.core.selection.model import Agent, Turn

LIST = ("id", "billing", "Travel Desk")


@pytest.mark.parametrize(
    ("content", "agent_id"),
    [
        ('{"agent_id": "id", "reasoning": "because"}', "id"),
        (' \n{"reasoning": "r", "agent_id": "Travel Desk"}\n', "Travel Desk"),
        ('{"agent_id": "bill\\u0069ng", "reasoning": ""}', "billing"),
        ('{"agent_id": "id"}', "id"),
        ('{"agent_id": "id", "reasoning": "r", "confidence": 0.5}', "id"),
    ],
)
def test_a_choice(content: str, agent_id: str) -> None:
    parsed = parse(content, LIST)
    assert isinstance(parsed, Choice)
    assert parsed.agent_id == agent_id


@pytest.mark.parametrize(
    "content",
    [
        '{"agent_id": "unknown", "reasoning": "r"}',
        '{"agent_id": " id", "reasoning": "r"}',
        '{"agent_id": "ID", "reasoning": "r"}',
        '{"agent_id": "id-2", "reasoning": "r"}',
        '{"agent_id": "", "reasoning": "r"}',
        '{"agent_id": ["id"], "reasoning": "r"}',
        '{"agent_id": null, "reasoning": "r"}',
        '{"agent_id": "id", "reasoning": ["r"]}',
        '{"agent_id": "id", "agent_id": "billing", "reasoning": "r"}',
        '{"agent_id": "id", "agent_id": "id", "reasoning": "r"}',
        '{"agent_id": "id", "reasoning": "r", "score": NaN}',
        '{"agent_id": "id", "reasoning": "r", "score": Infinity}',
        '{"agent_id": "id", "reason',
        '```json\n{"agent_id": "id", "reasoning": "r"}\n```',
        "I would take id, or maybe billing.",
        '"id"',
        '["id"]',
        "null",
        "",
        "id",
        '{"agent_id": "id"} {"agent_id": "billing"}',
        "[" * 100_000,
    ],
)
def test_no_choice(content: str) -> None:
    parsed = parse(content, LIST)
    assert isinstance(parsed, NoChoice)
    assert parsed.cause


def test_reasoning_is_cut_and_can_travel() -> None:
    parsed = parse(json.dumps({"agent_id": "id", "reasoning": "\ud800" + "x" * 5000}), LIST)
    assert isinstance(parsed, Choice)
    assert len(parsed.reasoning) == REASONING_CHARACTERS
    parsed.reasoning.encode()


def test_the_schema_has_the_ids_as_an_enum_and_nothing_else() -> None:
    made = schema(LIST)
    assert made["properties"]["agent_id"] == {"type": "string", "enum": list(LIST)}
    assert made["required"] == ["agent_id", "reasoning"]
    assert made["additionalProperties"] is False


def test_the_question_has_candidates_in_order_the_conversation_and_the_request() -> None:
    question = ask("where is it?", [Turn("user", "hello", "billing")], [Agent("id", "Name"), Agent("billing", "B")])
    content = json.loads(question.messages[-1]["content"])
    assert [entry["agent_id"] for entry in content["agents"]] == ["id", "billing"]
    assert content["conversation"] == [{"role": "user", "content": "hello", "handled_by": "billing"}]
    assert content["request"] == "where is it?"


def test_a_question_stays_small_whatever_is_pasted() -> None:
    agents = [Agent(f"a{i}", "N", "d" * 8192) for i in range(10)]
    question = ask("q" * 10**6, [Turn("user", "t" * 10**6)] * 20, agents)
    assert sum(len(message["content"]) for message in question.messages) < 100_000
