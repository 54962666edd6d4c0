"""The embeddings of agents' cards: made once per text and model, kept over restarts, never mixed (§9)."""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate_server.core.model import SECOND, Instant, Nanos
from tidegate_server.core.selection.model import Agent, Vector
from tidegate_server.core.selection.ranking import unit
from tidegate_server.core.selection.words import card
from tidegate_server.errors import ProviderFailed, StoreUnavailable
from tidegate_server.ports import AgentStore, Clock, Embedder
from tidegate_server.usecases.deadlines import within

_KEPT = 20_000
"""Vectors held in memory: 40 MB at 512 numbers each. The store has the rest."""

_CHUNK = 64
"""Cards between two writes to the store: what a failing endpoint can undo."""

_FILLS_JOINED = 8
"""A fill that was under way may have been for other cards; after so many of them what there is must do."""

_FILL_LIMIT: Nanos = 60 * SECOND
_REFUSED_FOR: Nanos = 600 * SECOND
"""For how long a card that got no usable vector is not asked for again."""

_log = logging.getLogger(__name__)


class Comparison(NamedTuple):
    """A text's unit vector and those of the agents that can be compared with it, by agent id."""

    text: Vector
    agents: Mapping[str, Vector]


class AgentEmbeddings:
    """Vectors by the space that they live in and the digest of the card.

    A fleet's missing cards are embedded by one task, which all selections that need them share and none of them can
    cancel: a selection that runs out of time takes the other way, and finds the vectors at the next one.
    """

    def __init__(self, embedder: Embedder, agents: AgentStore, clock: Clock) -> None:
        self._embedder = embedder
        self._agents = agents
        self._clock = clock
        self._vectors: OrderedDict[tuple[str, bytes], Vector] = OrderedDict()
        self._refused: dict[tuple[str, bytes, int], Instant] = {}
        self._fills: dict[str, asyncio.Task[None]] = {}

    async def compare(self, text: str, agents: Sequence[Agent]) -> Comparison:
        """Embed `text`, and find the agents' vectors that live in its space. ProviderFailed when there are none."""
        answer = await self._embedder.embed([text])
        vector = answer.vectors[0]
        if vector is None:
            raise ProviderFailed("the endpoint gave no usable vector for the query")
        cards = {_digest(words): words for words in (card(agent) for agent in agents)}
        found = await self._find(answer.space, cards, len(vector))
        if not found:
            raise ProviderFailed("the endpoint gave no vector of an agent that compares with the query's")
        by_agent = ((agent.agent_id, found.get(_digest(card(agent)))) for agent in agents)
        return Comparison(unit(vector), {agent_id: known for agent_id, known in by_agent if known is not None})

    async def close(self) -> None:
        """End what is still being embedded; what was stored stays."""
        for task in self._fills.values():
            task.cancel()
        await asyncio.gather(*self._fills.values(), return_exceptions=True)

    async def _find(self, space: str, cards: Mapping[bytes, str], length: int) -> Mapping[bytes, Vector]:
        await self._recall(space, cards)
        for _ in range(_FILLS_JOINED):
            missing = self._missing(space, cards, length)
            if not missing:
                break
            fill = self._fills.get(space)
            if fill is None:
                fill = asyncio.ensure_future(within(self._clock, _FILL_LIMIT, self._fill(space, missing, length)))
                self._fills[space] = fill
                fill.add_done_callback(lambda done: self._filled(space, done))
            await _joined(fill)
        known = ((digest, self._vectors.get((space, digest))) for digest in cards)
        return {digest: vector for digest, vector in known if vector is not None and len(vector) == length}

    async def _recall(self, space: str, cards: Mapping[bytes, str]) -> None:
        """Read from the store what is not in memory. Without the store the vectors can still be made again."""
        unknown = [digest for digest in cards if (space, digest) not in self._vectors]
        if unknown:
            try:
                stored = await self._agents.vectors(space, unknown)
            except StoreUnavailable:
                _log.warning("stored embeddings cannot be read; they are made again")
            else:
                self._remember(space, stored)

    def _missing(self, space: str, cards: Mapping[bytes, str], length: int) -> dict[bytes, str]:
        """The cards without a vector of this length; a provider that changed its model's length starts anew."""
        now = self._clock.monotonic()
        self._refused = {key: until for key, until in self._refused.items() if now < until}
        return {
            digest: text
            for digest, text in cards.items()
            if len(self._vectors.get((space, digest), ())) != length and (space, digest, length) not in self._refused
        }

    async def _fill(self, space: str, cards: Mapping[bytes, str], length: int) -> None:
        waiting = list(cards.items())
        while waiting:
            chunk, waiting = waiting[:_CHUNK], waiting[_CHUNK:]
            answer = await self._embedder.embed([text for _, text in chunk])
            if answer.space != space:
                raise ProviderFailed("the endpoint changed its model in between")
            pairs = zip(chunk, answer.vectors, strict=True)
            made = {digest: unit(vector) for (digest, _), vector in pairs if vector and len(vector) == length}
            until = self._clock.monotonic() + _REFUSED_FOR
            self._refused.update({(space, digest, length): until for digest, _ in chunk if digest not in made})
            self._remember(space, made)
            try:
                await self._agents.put_vectors(space, made)
            except StoreUnavailable:
                _log.warning("embeddings cannot be stored; the next start makes %d of them again", len(made))

    def _remember(self, space: str, vectors: Mapping[bytes, Vector]) -> None:
        for digest, vector in vectors.items():
            self._vectors[space, digest] = vector
            self._vectors.move_to_end((space, digest))
        while len(self._vectors) > _KEPT:
            self._vectors.popitem(last=False)

    def _filled(self, space: str, done: asyncio.Task[None]) -> None:
        del self._fills[space]
        if not done.cancelled() and done.exception() is not None:
            _log.info("a fleet was not embedded whole: %s", done.exception())


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


async def _joined(fill: asyncio.Task[None]) -> None:
    """Wait for a fill that others wait for, too. One that was ended (a reload) fails the stage, not the caller."""
    await asyncio.wait((fill,))
    if fill.cancelled():
        raise ProviderFailed("the embedding of the fleet was ended")
    fill.result()
