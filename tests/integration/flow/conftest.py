"""A served flow guard for every test in here, and a token that clients and commands find by themselves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.flow.serving import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as service:
        yield service


@pytest.fixture(autouse=True)
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("gateway")
    monkeypatch.setenv("TIDEGATE_TOKEN_FILE", str(path))
    return path
