"""Embeddings of an endpoint that cannot be trusted: batches, places, lengths, and vectors that are none."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tidegate_server.core.selection.model import Vector
from tidegate_server.errors import ProviderFailed
from tidegate_server.providers.endpoint import Endpoint
from tidegate_server.providers.openai_embedder import OpenAiEmbedder

from tests.integration.selection.openai_standin import Json, Reply, StandIn, embed, embeddings, reply

TEXTS = [f"text about subject{i}" for i in range(25)]


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    async with StandIn() as standin:
        yield standin


@pytest.fixture
async def embedder(standin: StandIn) -> AsyncIterator[OpenAiEmbedder]:
    embedder = OpenAiEmbedder(Endpoint(standin.base_url, "sk-secret"), standin.base_url, "small")
    yield embedder
    await embedder.close()


def is_of(vector: Vector | None, text: str) -> bool:
    return vector is not None and list(vector) == embed(text)


async def test_one_call_for_what_fits(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    answer = await embedder.embed(TEXTS)
    assert all(map(is_of, answer.vectors, TEXTS))
    assert standin.embedding_calls == [{"model": "small", "input": TEXTS, "encoding_format": "float"}]
    assert standin.authorizations == {"Bearer sk-secret"}
    assert "secret" not in answer.space
    assert answer.space.endswith(":small:standin-embedding")


async def test_a_large_fleet_goes_in_batches(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    texts = [f"word{i}" for i in range(150)]
    answer = await embedder.embed(texts)
    assert all(map(is_of, answer.vectors, texts))
    assert standin.batches == [64, 64, 22]


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_cap_is_found_by_halving_and_kept(standin: StandIn, embedder: OpenAiEmbedder, status: int) -> None:
    standin.embedding = lambda p: reply(embeddings(p)) if len(p["input"]) <= 10 else Reply(status=status)
    answer = await embedder.embed(TEXTS)
    assert all(map(is_of, answer.vectors, TEXTS))
    learned = len(standin.batches)
    await embedder.embed(TEXTS)
    assert max(standin.batches[learned:]) <= 10


async def test_cap_shuffle_blank_and_one_short_reply_at_once(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    short = iter([True])

    def behave(payload: Json) -> Reply:
        if len(payload["input"]) > 10:
            return Reply(status=400)
        answer = embeddings(payload)
        answer["data"].reverse()
        if next(short, False):
            answer["data"].pop()
        return reply(answer)

    standin.embedding = behave
    texts = [*TEXTS[:7], "  ", *TEXTS[8:]]
    answer = await embedder.embed(texts)
    assert answer.vectors[7] is None
    assert all(is_of(vector, text) for vector, text in zip(answer.vectors, texts, strict=True) if text.strip())


async def test_one_text_that_is_not_taken_costs_only_itself(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    standin.embedding = lambda p: Reply(status=400) if TEXTS[0] in p["input"] else reply(embeddings(p))
    answer = await embedder.embed(TEXTS)
    assert answer.vectors[0] is None
    assert all(map(is_of, answer.vectors[1:], TEXTS[1:]))
    calls = len(standin.batches)
    await embedder.embed(TEXTS[1:])
    assert standin.batches[calls:] == [24]


async def test_texts_that_are_too_long_are_cut_to_what_is_read_and_the_length_is_kept(
    standin: StandIn, embedder: OpenAiEmbedder
) -> None:
    standin.embedding = lambda p: reply(embeddings(p)) if max(map(len, p["input"])) <= 1000 else Reply(status=400)
    long = "word " * 3000
    answer = await embedder.embed([long])
    assert is_of(answer.vectors[0], long[:937])
    calls = len(standin.batches)
    assert calls == 5
    answer = await embedder.embed([long, TEXTS[0]])
    assert is_of(answer.vectors[1], TEXTS[0])
    assert standin.batches[calls:] == [2]


async def test_an_endpoint_that_takes_nothing_is_asked_a_few_times_only(
    standin: StandIn, embedder: OpenAiEmbedder
) -> None:
    standin.embedding = lambda _: Reply(status=400)
    with pytest.raises(ProviderFailed, match="status 400"):
        await embedder.embed(TEXTS)
    assert len(standin.batches) < 10


@pytest.mark.parametrize("status", [301, 401, 403, 404, 429, 500, 503])
async def test_other_statuses_end_it_at_once(standin: StandIn, embedder: OpenAiEmbedder, status: int) -> None:
    standin.embedding = lambda _: Reply(status=status, headers=(("retry-after", "3600"), ("location", "/x")))
    with pytest.raises(ProviderFailed, match=f"status {status}"):
        await embedder.embed(TEXTS)
    assert len(standin.batches) == 1


def with_embedding(place: int, value: object) -> Any:
    def behave(payload: Json) -> Reply:
        answer = embeddings(payload)
        answer["data"][place]["embedding"] = value
        return reply(answer)

    return behave


@pytest.mark.parametrize(
    "value",
    [
        [math.nan] + [1.0] * 63,
        [math.inf] * 64,
        [0.0] * 64,
        [],
        None,
        "AAAA",
        ["1", "2"],
        [10**400],
        {"0": 1},
    ],
)
async def test_a_vector_that_is_none(standin: StandIn, embedder: OpenAiEmbedder, value: object) -> None:
    standin.embedding = with_embedding(1, value)
    answer = await embedder.embed(TEXTS[:3])
    assert [vector is None for vector in answer.vectors] == [False, True, False]
    assert len(standin.batches) == 1


async def test_an_index_that_stands_twice_is_trusted_for_neither(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    def behave(payload: Json) -> Reply:
        answer = embeddings(payload)
        for entry in answer["data"]:
            entry["index"] = 0
        return reply(answer)

    standin.embedding = behave
    answer = await embedder.embed(TEXTS[:4])
    assert all(map(is_of, answer.vectors, TEXTS))


@pytest.mark.parametrize("index", [-1, 3, True, 1.0, "1", None])
async def test_an_index_that_is_none_places_nothing(standin: StandIn, embedder: OpenAiEmbedder, index: object) -> None:
    def behave(payload: Json) -> Reply:
        answer = embeddings(payload)
        if len(answer["data"]) == 3:
            answer["data"][1]["index"] = index
        return reply(answer)

    standin.embedding = behave
    answer = await embedder.embed(TEXTS[:3])
    assert all(map(is_of, answer.vectors, TEXTS))
    assert standin.batches == [3, 1]


async def test_answers_of_two_models_are_not_mixed(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    standin.embedding = lambda p: reply(embeddings(p, model=f"model-{len(standin.embedding_calls)}"))
    with pytest.raises(ProviderFailed, match="more than one model"):
        await embedder.embed([f"word{i}" for i in range(70)])


@pytest.mark.parametrize(
    "said",
    [
        Reply(b"not json"),
        Reply(b""),
        Reply(b"[]"),
        Reply(b"null"),
        Reply(b'{"data": null}'),
        Reply(b'{"data": {}}'),
        Reply(b'{"data": [' + b"[" * 50_000),
        Reply(b"\xff\xfe"),
        Reply(b'{"data": [1, 2, 3, 4]}'),
        Reply(b'{"data": []}', headers=(("content-encoding", "gzip"),)),
        Reply(b'{"data": []}', cut=True),
        Reply(b"x" * (17 * 1024 * 1024)),
    ],
    ids=["prose", "empty", "list", "null", "no data", "object", "deep", "not utf-8", "long", "gzip", "cut", "17 MB"],
)
async def test_an_answer_that_is_none(standin: StandIn, embedder: OpenAiEmbedder, said: Reply) -> None:
    standin.embedding = lambda _: said
    with pytest.raises(ProviderFailed) as raised:
        await embedder.embed(TEXTS[:3])
    assert "127.0.0.1" not in raised.value.cause
    assert "secret" not in raised.value.cause


async def test_an_endpoint_that_is_not_there() -> None:
    embedder = OpenAiEmbedder(Endpoint("http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1", "small")
    with pytest.raises(ProviderFailed, match="could not be reached"):
        await embedder.embed(TEXTS)
    await embedder.close()


async def test_what_never_comes_is_none_and_does_not_loop(standin: StandIn, embedder: OpenAiEmbedder) -> None:
    def behave(payload: Json) -> Reply:
        answer = embeddings(payload)
        answer["data"] = [
            entry for entry, text in zip(answer["data"], payload["input"], strict=True) if "3" not in text
        ]
        return reply(answer)

    standin.embedding = behave
    answer = await embedder.embed(TEXTS[:5])
    assert [vector is None for vector in answer.vectors] == [False, False, False, True, False]
    assert len(standin.batches) <= 3
