"""The embedded default: a model inside a package, in this process, without a network."""

import asyncio

import pytest
from tidegate_server.core.selection.ranking import cosine, unit
from tidegate_server.errors import ProviderFailed
from tidegate_server.providers import packaged_embedder
from tidegate_server.providers.packaged_embedder import PackagedEmbedder


async def test_close_texts_are_closer_than_far_ones() -> None:
    embedder = PackagedEmbedder()
    invoice, bill, flight = (
        await embedder.embed(["refund a wrong invoice", "money back for a bill", "book a flight to Oslo"])
    ).vectors
    assert invoice is not None
    assert bill is not None
    assert flight is not None
    assert len(invoice) == 512
    assert cosine(unit(invoice), unit(bill)) > cosine(unit(invoice), unit(flight)) + 0.1
    await embedder.close()


async def test_the_same_text_has_the_same_vector_in_any_company() -> None:
    embedder = PackagedEmbedder()
    texts = [f"an agent that knows subject number {i}" for i in range(40)]
    together = await embedder.embed(texts)
    alone = await embedder.embed([texts[33]])
    assert together.space == alone.space
    assert together.space.startswith("usem3:")
    assert alone.vectors[0] == pytest.approx(together.vectors[33], abs=1e-5)
    await embedder.close()


async def test_blank_texts_have_no_vector_and_long_ones_do() -> None:
    embedder = PackagedEmbedder()
    blank, long = (await embedder.embed([" \n", "word " * 100_000])).vectors
    assert blank is None
    assert long is not None
    await embedder.close()


async def test_a_missing_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_embedder, "_PACKAGE", "tidegate_no_such_package")
    assert not PackagedEmbedder.is_installed()
    embedder = PackagedEmbedder()
    with pytest.raises(ProviderFailed, match="extra `agents`"):
        await embedder.embed(["x"])
    await embedder.close()


async def test_a_caller_that_gives_up_leaves_the_thread_to_others() -> None:
    embedder = PackagedEmbedder()
    await embedder.embed(["load the model"])
    gives_up = asyncio.ensure_future(embedder.embed(["text"] * 100_000))
    await asyncio.sleep(0)
    gives_up.cancel()
    assert len((await embedder.embed(["another"])).vectors) == 1
    await embedder.close()
