"""Embeddings of any OpenAI-compatible endpoint: batches that fit it, and vectors that are what they seem."""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidegate_server.core.selection.model import Vector
from tidegate_server.core.selection.ranking import usable
from tidegate_server.errors import ProviderFailed
from tidegate_server.ports import Embedded
from tidegate_server.providers.endpoint import Endpoint, Rejected

_FIRST_BATCH = 64
_MOST_CHARACTERS = 16_000
_FEWEST_CHARACTERS = 250
"""How long a text may be at first, and how short it is not made: what says less says nothing."""

_BODY_LIMIT = 16 * 1024 * 1024
"""64 vectors of 4096 numbers in JSON have about 6 MB."""

_TOO_MUCH = frozenset({400, 413, 422})
"""The statuses by which endpoints say that a batch, or a text in it, is more than they take."""


class _Reply(NamedTuple):
    """What one call brought: by the text's place, its vector, None where that cannot be used. And the model's name."""

    vectors: Mapping[int, Vector | None]
    model: str


@dataclass(slots=True)
class _Run:
    """The state of one `embed`: what was found by place, the models that answered, how many texts were rejected."""

    texts: Sequence[str]
    found: dict[int, Vector | None] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    rejected: int = 0


class OpenAiEmbedder:
    """The port `Embedder`.

    Texts are cut to what the endpoint reads, which is learned: one that is rejected alone is tried at half its length.
    A batch that is rejected is halved until it passes, or until the one text in it that is not taken is found; when all
    of it passed in parts, the size of the parts is kept for the next time. What is missing in an answer is asked for
    again. A text that the endpoint does not take, and a vector that is none (not finite, zero), is None.
    """

    def __init__(self, endpoint: Endpoint, base_url: str, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._space = f"openai:{hashlib.sha256(base_url.encode()).hexdigest()[:16]}:{model}"
        self._batch = _FIRST_BATCH
        self._characters = _MOST_CHARACTERS

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """The vectors of `texts`. ProviderFailed when the endpoint fails, or takes none of the first texts."""
        run = _Run(texts)
        waiting = [place for place, text in enumerate(texts) if text.strip()]
        while waiting:
            places, waiting = waiting[: self._batch], waiting[self._batch :]
            await self._fill(run, places)
        if len(run.models) > 1:
            raise ProviderFailed("the endpoint answered from more than one model")
        space = ":".join((self._space, *run.models))
        return Embedded(space, tuple(run.found.get(place) for place in range(len(texts))))

    async def _fill(self, run: _Run, places: Sequence[int]) -> None:
        """Find the vectors of these places. Each question is smaller than the one it comes from, so there is an end."""
        texts = [run.texts[place][: self._characters] for place in places]
        reply = await (self._ask(run, texts) if len(texts) > 1 else self._ask_alone(run, texts[0]))
        if reply is not None:
            run.models.add(reply.model)
            run.found.update({places[position]: vector for position, vector in reply.vectors.items()})
        missing = [place for place in places if place not in run.found]
        if len(missing) == 1 == len(places):
            run.rejected += reply is None
            run.found[missing[0]] = None
        elif len(missing) == len(places):
            await self._fill_halves(run, places)
        elif missing:
            await self._fill(run, missing)

    async def _fill_halves(self, run: _Run, places: Sequence[int]) -> None:
        before = run.rejected
        middle = len(places) // 2
        await self._fill(run, places[:middle])
        await self._fill(run, places[middle:])
        if run.rejected == before:
            self._batch = min(self._batch, len(places) - middle)

    async def _ask_alone(self, run: _Run, text: str) -> _Reply | None:
        """One text, at half its length when it is rejected, and so on; a length that passes is kept to from then on."""
        whole = len(text)
        while len(text) > 2 * _FEWEST_CHARACTERS:
            reply = await self._ask(run, [text], shorter=True)
            if reply is not None:
                break
            text = text[: len(text) // 2]
        else:
            reply = await self._ask(run, [text])
        if reply is not None and len(text) < whole:
            self._characters = len(text)
        return reply

    async def _ask(self, run: _Run, texts: Sequence[str], *, shorter: bool = False) -> _Reply | None:
        """One call. None: it was rejected for what is in it, and a smaller one may pass (`shorter`: a shorter text)."""
        payload = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        try:
            answer = await self._endpoint.post("/embeddings", payload, limit=_BODY_LIMIT)
        except Rejected as error:
            # An endpoint that takes neither of two single texts, and took none before, means the call and not the text.
            hopeless = len(texts) == 1 and not run.models and (run.rejected > 0 or len(run.texts) == 1)
            if error.status not in _TOO_MUCH or (hopeless and not shorter):
                raise
            return None
        return _read(answer, len(texts))

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def _read(answer: Mapping[str, Any], count: int) -> _Reply:
    """Place the vectors by their `index`. An index that stands twice tells nothing of either vector."""
    data, model = answer.get("data"), answer.get("model")
    if not isinstance(data, list) or len(data) > count:
        raise ProviderFailed("the endpoint's answer is not a list of embeddings")
    vectors: dict[int, Vector | None] = {}
    ambiguous: set[int] = set()
    for position, item in enumerate(data):
        if not isinstance(item, dict):
            continue
        place = item.get("index", position if len(data) == count else None)
        if type(place) is not int or not 0 <= place < count:
            continue
        if place in vectors:
            ambiguous.add(place)
        vectors[place] = _vector(item.get("embedding"))
    for place in ambiguous:
        del vectors[place]
    return _Reply(vectors, model if isinstance(model, str) else "")


def _vector(numbers: object) -> Vector | None:
    if not isinstance(numbers, list):
        return None
    try:
        vector = array("f", numbers)
    except (TypeError, OverflowError):
        return None
    return vector if usable(vector) else None
