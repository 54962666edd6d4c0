"""The three stages of §9 around their two ports. Each gives an answer in its time, whatever the provider does."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate_server.core.model import Nanos
from tidegate_server.core.selection import choice
from tidegate_server.core.selection.model import Agent, SelectionSettings, Turn, Usage
from tidegate_server.core.selection.ranking import Ranked, conversation, last_handler, rank
from tidegate_server.core.selection.words import by_overlap
from tidegate_server.errors import ProviderFailed
from tidegate_server.ports import Clock, Selector
from tidegate_server.usecases.agent_embeddings import AgentEmbeddings
from tidegate_server.usecases.deadlines import within

_log = logging.getLogger(__name__)


class Passed(NamedTuple):
    """What a stage passes on, the best first. `degraded`, `skipped` and `cause` as in a StageReport."""

    ranked: tuple[Ranked, ...]
    degraded: bool = False
    skipped: bool = False
    cause: str = ""

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents alone."""
        return tuple(entry.agent for entry in self.ranked)


class Picked(NamedTuple):
    """What stage 3 picked. `usage` None: no model was called. `cause` "": the model picked; else why it did not."""

    agent: Agent
    reasoning: str = ""
    usage: Usage | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages with what they need. `embeddings` and `selector` None: none is configured."""

    clock: Clock
    settings: SelectionSettings
    embeddings: AgentEmbeddings | None
    selector: Selector | None

    async def shortlist(self, query: str, agents: Sequence[Agent], budget: Nanos) -> Passed:
        """Stage 1: the agents most similar to the query. A small fleet passes whole, without an embedding call.

        Word overlap orders what is not compared, so that "the highest-ranked" means something on every way.
        """
        settings = self.settings
        if len(agents) < settings.shortlist_threshold:
            cause = f"{len(agents)} agents are fewer than {settings.shortlist_threshold}"
            return Passed(await _by_overlap(query, agents), skipped=True, cause=cause)
        try:
            ranked = await self._rank(query, agents, budget)
        except Exception as error:  # noqa: BLE001 - whatever an embedder does, a query is never dropped (§9)
            return Passed(
                (await _by_overlap(query, agents))[: settings.shortlist_size], degraded=True, cause=cause_of(error)
            )
        return Passed(ranked[: settings.shortlist_size])

    async def rerank(self, query: str, history: Sequence[Turn], before: Passed, budget: Nanos) -> Passed:
        """Stage 2: the same agents by their similarity to the conversation; without history no call at all."""
        if not history:
            return Passed(before.ranked, skipped=True, cause="the session has no history")
        if before.degraded:
            return Passed(before.ranked, degraded=True, cause="embeddings failed in the shortlist")
        try:
            text = conversation(history, query)
            ranked = await self._rank(text, before.agents, budget, ahead=last_handler(history))
        except Exception as error:  # noqa: BLE001 - as in the shortlist
            return Passed(before.ranked, degraded=True, cause=cause_of(error))
        return Passed(ranked)

    async def select(self, query: str, history: Sequence[Turn], before: Passed, budget: Nanos) -> Picked:
        """Stage 3: the model's choice, else the highest-ranked candidate."""
        highest = before.agents[0]
        if self.selector is None:
            return Picked(highest, cause="no chat endpoint is configured")
        by_id = {agent.agent_id: agent for agent in before.agents}
        try:
            answer = await within(self.clock, budget, self.selector.answer(choice.ask(query, history, before.agents)))
            parsed = choice.parse(answer.content, tuple(by_id))
        except ProviderFailed as error:
            return Picked(highest, usage=Usage(*error.tokens), cause=error.cause)
        except Exception as error:  # noqa: BLE001 - as in the shortlist
            return Picked(highest, usage=Usage(), cause=cause_of(error))
        if isinstance(parsed, choice.NoChoice):
            return Picked(highest, usage=answer.usage, cause=parsed.cause)
        return Picked(by_id[parsed.agent_id], parsed.reasoning, answer.usage)

    async def _rank(self, text: str, agents: Sequence[Agent], budget: Nanos, *, ahead: str = "") -> tuple[Ranked, ...]:
        if self.embeddings is None:
            raise ProviderFailed("no embedding model is configured")
        compared = await within(self.clock, budget, self.embeddings.compare(text, agents))
        return await asyncio.to_thread(rank, compared.text, agents, compared.agents, ahead=ahead)


async def _by_overlap(query: str, agents: Sequence[Agent]) -> tuple[Ranked, ...]:
    return tuple(Ranked(agent) for agent in await asyncio.to_thread(by_overlap, query, agents))


def cause_of(error: Exception) -> str:
    """A stage's cause in words that may be shown; what was not foreseen goes to the server's own log alone."""
    if isinstance(error, ProviderFailed):
        return error.cause
    if isinstance(error, TimeoutError):
        return "it took longer than the stage's deadline"
    _log.error("a stage of agent selection failed", exc_info=error)
    return "an unexpected error"
