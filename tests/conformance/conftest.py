"""Every test here runs for every client, with its admissions alone and riding together."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.conformance.clients import BUILD_SECONDS, COALESCING, KINDS, Kind, Runner, started
from tests.conformance.scripted import Script, serving

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a client also builds it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(params=(*KINDS, *COALESCING), ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """The client under test."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[str, Script]]:
    """A scripted server for all cases of a module."""
    with serving() as server:
        yield server


@pytest.fixture
async def runner(kind: Kind, scripted: tuple[str, Script], tmp_path: Path) -> AsyncIterator[Runner]:
    """The client's runner, speaking to the scripted server."""
    async with started(kind, scripted[0], tmp_path) as process:
        yield process
