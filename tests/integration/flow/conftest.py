"""A served flow guard for every test in here."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.flow.serving import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as service:
        yield service
