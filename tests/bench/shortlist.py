"""Of 200 agents, does the shortlist of ten hold the right one? With the embedded default, and by word overlap alone.

Run by `python -m tests.bench.shortlist`; the test beside it holds the floor. The fleet and the queries were written for
this: each agent has a description of its own, and a query avoids its agent's words where a person would.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate_server.core.selection.model import Agent
from tidegate_server.core.selection.ranking import rank
from tidegate_server.core.selection.words import by_overlap
from tidegate_server.providers.packaged_embedder import PackagedEmbedder
from tidegate_server.stores.memory_agents import MemoryAgentStore
from tidegate_server.usecases.agent_embeddings import AgentEmbeddings
from tidegate_server.wiring.clock import SystemClock

DATA = Path(__file__).parent / "data"
SHORTLIST = 10
FLOOR = 95
"""Right agents of a hundred that the embedded default must keep in the shortlist of ten."""


class Outcome(NamedTuple):
    """How many right agents were kept, which queries lost theirs, and the time of one query in milliseconds."""

    kept: int
    lost: tuple[str, ...]
    milliseconds: float


def rows(name: str) -> list[list[str]]:
    """The lines of a data file, split at their bars; lines that begin with # are notes."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [[part.strip() for part in line.split("|")] for line in lines if line and not line.startswith("#")]


def fleet() -> list[Agent]:
    """The 200 agents."""
    return [
        Agent(agent_id, name, description, tuple(skill.strip() for skill in skills.split(",")))
        for agent_id, name, description, skills in rows("agents.txt")
    ]


def queries() -> list[tuple[str, str]]:
    """The 100 queries: the right agent's id, and the words."""
    return [(agent_id, query) for agent_id, query in rows("queries.txt")]


def outcome(shortlists: Sequence[Sequence[Agent]], seconds: float) -> Outcome:
    """Count the shortlists that hold the right agent."""
    asked = queries()
    lost = tuple(
        f"{right}: {query}"
        for (right, query), shortlist in zip(asked, shortlists, strict=True)
        if right not in {agent.agent_id for agent in shortlist}
    )
    return Outcome(len(asked) - len(lost), lost, 1000 * seconds / len(asked))


async def embedded() -> Outcome:
    """The shortlists of the embedded default, as stage 1 makes them."""
    agents, embedder, clock = fleet(), PackagedEmbedder(), SystemClock()
    embeddings = AgentEmbeddings(embedder, MemoryAgentStore(), clock)
    await embeddings.compare("the fleet's vectors are made once", agents)
    begun = time.perf_counter()
    shortlists = []
    for _, query in queries():
        compared = await embeddings.compare(query, agents)
        ranked = rank(compared.text, agents, compared.agents)
        shortlists.append([entry.agent for entry in ranked[:SHORTLIST]])
    seconds = time.perf_counter() - begun
    await embeddings.close()
    await embedder.close()
    return outcome(shortlists, seconds)


def overlapping() -> Outcome:
    """The shortlists by word overlap: what is left when embeddings fail."""
    agents = fleet()
    begun = time.perf_counter()
    shortlists = [by_overlap(query, agents)[:SHORTLIST] for _, query in queries()]
    return outcome(shortlists, time.perf_counter() - begun)


def main() -> None:
    """Print both."""
    for name, found in (("embedded default", asyncio.run(embedded())), ("word overlap", overlapping())):
        kept = f"{found.kept}/{len(queries())}"
        print(f"{kept} in the shortlist of {SHORTLIST} of {len(fleet())}, {name}, {found.milliseconds:.1f} ms a query")
        for line in found.lost:
            print(f"    lost  {line}")


if __name__ == "__main__":
    main()
