"""Stages 1 and 2: order agents by the similarity of vectors.

An agent without a usable vector (none, zero, not finite, another length than the query's) is not compared: it stands
behind those that were, in the order in which it came.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from operator import mul
from typing import NamedTuple

from tidegate_server.core.selection.model import Agent, Turn, Vector

CONTINUITY = 0.05
"""What the agent that handled the last turn is ahead by in stage 2, in cosine: enough to break a near tie, too little
to keep a conversation that has turned to something else (the gap between a close and a far text is above 0.1)."""

_CONVERSATION_CHARACTERS = 8_000
"""About 2 000 tokens: what embedding models read, and what one of them can still tell the subject of."""

_QUERY_CHARACTERS = 4_000
_TURN_CHARACTERS = 2_000


class Ranked(NamedTuple):
    """An agent and the score that placed it; None: it was not compared."""

    agent: Agent
    score: float | None = None


def usable(vector: Vector | None) -> bool:
    """Whether a vector can be compared at all: not empty, every number finite, and not zero."""
    square = sum(map(mul, vector, vector)) if vector else 0.0
    return math.isfinite(square) and square > 0


def unit(vector: Vector) -> Vector:
    """A usable vector's direction, in 32-bit floats: made once, so that a comparison is one sum of products."""
    length = math.sqrt(sum(map(mul, vector, vector)))
    return array("f", [number / length for number in vector])


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of two unit vectors of one length, -1 to 1."""
    products: float = sum(map(mul, one, other))
    return products


def rank(
    query: Vector, agents: Sequence[Agent], vectors: Mapping[str, Vector], *, ahead: str = ""
) -> tuple[Ranked, ...]:
    """`agents` by the similarity of their unit vectors (by agent id) to `query`; CONTINUITY favours `ahead`."""
    query = list(query)  # numbers made once, not once for every agent
    scored = []
    for position, agent in enumerate(agents):
        vector = vectors.get(agent.agent_id)
        if vector is None or len(vector) != len(query):
            scored.append((math.inf, position, Ranked(agent)))
            continue
        score = cosine(query, vector) + (CONTINUITY if agent.agent_id == ahead else 0.0)
        scored.append((-score, position, Ranked(agent, score)))
    return tuple(ranked for _, _, ranked in sorted(scored, key=lambda entry: entry[:2]))


def recent(history: Sequence[Turn], limit: int) -> tuple[Turn, ...]:
    """The newest `limit` turns, those without words left out."""
    return tuple(turn for turn in history if turn.content.strip())[-limit:] if limit > 0 else ()


def conversation(history: Sequence[Turn], query: str) -> str:
    """What stage 2 compares: the running history, then the query.

    A turn is cut where it stops telling more, and where a conversation is longer than models read, its oldest turns go.
    """
    lines = [query[:_QUERY_CHARACTERS]]
    left = _CONVERSATION_CHARACTERS - len(lines[0])
    for turn in reversed(history):
        line = f"{turn.role or 'user'}: {turn.content.strip()[:_TURN_CHARACTERS]}"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    return "\n".join(reversed(lines))


def last_handler(history: Sequence[Turn]) -> str:
    """Who handled the session's newest turn that anyone handled; "" when nobody did."""
    return next((turn.agent_id for turn in reversed(history) if turn.agent_id), "")
