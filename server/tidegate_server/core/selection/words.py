"""How much of a text's words an agent's card has: what is left when no embedding can be had (§9), and the name match.

Rare words say more than common ones, so each weighs by how few of the fleet's cards have it; trigrams break ties, which
lets "invoices" find "invoice" and serves scripts without spaces between words. Never the order of registration first:
in a fleet of forty the thirty-seventh is reached as well as the first.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from tidegate_server.core.selection.model import Agent

_WORD = re.compile(r"\w+")
_QUERY_CHARACTERS = 16_384
"""Enough to tell what a query is about; ranking must not depend on how much a caller pastes."""


def card(agent: Agent) -> str:
    """The text that stands for an agent wherever it is compared: name, description, skills, tags (§9)."""
    parts = [agent.name, agent.description, ", ".join(agent.skills), ", ".join(agent.tags)]
    return "\n".join(part.strip() for part in parts if part.strip())


def words(text: str) -> frozenset[str]:
    """The different words of a text, folded for comparison."""
    return frozenset(_WORD.findall(text[:_QUERY_CHARACTERS].casefold()))


def trigrams(of: frozenset[str]) -> frozenset[str]:
    """Every three letters in a row of these words, their edges marked."""
    return frozenset(padded[i : i + 3] for padded in (f" {word} " for word in of) for i in range(len(padded) - 2))


@lru_cache(maxsize=4096)
def _terms(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words and the trigrams of a card; kept, since a fleet changes seldom and is compared with every query."""
    found = words(text)
    return found, trigrams(found)


def _weights(cards: Sequence[frozenset[str]]) -> dict[str, float]:
    """How much each term says: the logarithm of how rare it is among the cards."""
    counts = Counter(term for terms in cards for term in terms)
    return {term: math.log((1 + len(cards)) / count) for term, count in counts.items()}


def _overlap(wanted: frozenset[str], has: frozenset[str], weights: dict[str, float]) -> float:
    return math.fsum(weights[term] for term in wanted & has)


def by_overlap(text: str, agents: Sequence[Agent]) -> tuple[Agent, ...]:
    """All of `agents`, the most telling words shared with `text` first; equal ones keep their order."""
    cards, parts = zip(*(_terms(card(agent)) for agent in agents), strict=True) if agents else ((), ())
    wanted = words(text)
    wanted_parts = trigrams(wanted)
    word_weights, part_weights = _weights(cards), _weights(parts)
    scores = [
        (_overlap(wanted, terms, word_weights), _overlap(wanted_parts, pieces, part_weights))
        for terms, pieces in zip(cards, parts, strict=True)
    ]
    order = sorted(range(len(agents)), key=lambda i: (-scores[i][0], -scores[i][1], i))
    return tuple(agents[i] for i in order)


def match_by_name(task: str, agents: Sequence[Agent]) -> Agent:
    """The agent whose name stands in `task` (the longest such name), else the one whose card overlaps it most.

    It is AssignStep's way out when the pipeline errors (§9). `agents` must not be empty.
    """
    spoken = f" {' '.join(_WORD.findall(task.casefold()))} "
    named = [
        (len(name), -position)
        for position, agent in enumerate(agents)
        for name in (" ".join(_WORD.findall(reference.casefold())) for reference in (agent.name, agent.agent_id))
        if name and f" {name} " in spoken
    ]
    return agents[-max(named)[1]] if named else by_overlap(task, agents)[0]
