"""Stages 1 and 2 on vectors."""

import math
from collections.abc import Mapping

import pytest
from tidegate_server.core.selection.model import Agent, Turn, Vector
from tidegate_server.core.selection.ranking import CONTINUITY, conversation, last_handler, rank, recent, unit, usable

A, B, C, D = (Agent(name, name.upper()) for name in "abcd")


def ids(query: Vector, vectors: Mapping[str, Vector], ahead: str = "") -> str:
    units = {agent_id: unit(vector) for agent_id, vector in vectors.items()}
    return "".join(entry.agent.agent_id for entry in rank(unit(query), [A, B, C, D], units, ahead=ahead))


def test_the_most_similar_comes_first_and_length_does_not_count() -> None:
    assert ids([1, 0], {"a": [0, 1], "b": [100, 1], "c": [1, 1], "d": [-1, 0]}) == "bcad"


def test_equal_ones_keep_their_order() -> None:
    assert ids([1, 0], {name: [1, 1] for name in "abcd"}) == "abcd"


def test_what_cannot_be_compared_stands_behind_and_is_not_lost() -> None:
    ranked = rank([1, 0], [A, B, C, D], {"b": [-1, 0], "c": [1, 0, 0], "d": [1, 0]})
    assert [entry.agent.agent_id for entry in ranked] == ["d", "b", "a", "c"]
    assert [entry.score is None for entry in ranked] == [False, False, True, True]


def test_a_near_tie_stays_with_the_agent_of_the_last_turn_and_a_clear_lead_does_not() -> None:
    close = {"a": [1.0, 0.0], "b": [math.cos(0.2), math.sin(0.2)]}
    assert close["a"][0] - close["b"][0] < CONTINUITY
    assert ids([1, 0], close, ahead="b") == "bacd"
    far = {"a": [1.0, 0.0], "b": [math.cos(0.5), math.sin(0.5)]}
    assert ids([1, 0], far, ahead="b") == "abcd"


@pytest.mark.parametrize(
    ("vector", "is_usable"),
    [
        ([0.5], True),
        ([0.0, 0.0], False),
        ([], False),
        (None, False),
        ([math.nan, 1.0], False),
        ([math.inf], False),
        ([1e200], False),
    ],
)
def test_a_vector_is_usable_when_it_has_a_direction(vector: Vector | None, is_usable: bool) -> None:
    assert usable(vector) is is_usable


def test_history_is_the_newest_turns_with_words() -> None:
    turns = [Turn("user", "one"), Turn("assistant", " "), Turn("user", "two"), Turn("user", "three")]
    assert [turn.content for turn in recent(turns, 2)] == ["two", "three"]
    assert [turn.content for turn in recent(turns, 20)] == ["one", "two", "three"]
    assert recent(turns, 0) == ()
    assert recent((), 5) == ()


def test_a_conversation_ends_with_the_query_and_long_turns_are_cut() -> None:
    text = conversation([Turn("user", "x" * 5000), Turn("", "hi")], "and now?")
    assert text.endswith("\nuser: hi\nand now?")
    assert len(text) < 2100


def test_of_a_long_conversation_the_newest_turns_and_the_query_are_left() -> None:
    turns = [Turn("user", f"turn {i} " + "x" * 1500) for i in range(20)]
    text = conversation(turns, "and now?" + "y" * 10_000)
    assert len(text) <= 8000
    assert "turn 19" in text
    assert "turn 18" in text
    assert "turn 10" not in text
    assert text.index("turn 18") < text.index("turn 19") < text.index("and now?")


def test_who_handled_the_session_last() -> None:
    assert last_handler([Turn("user", "x", "a"), Turn("assistant", "y", "b"), Turn("user", "z")]) == "b"
    assert last_handler([Turn("user", "x")]) == ""
