"""Envoy, Tidegate and the engines, started once for each test that asks for them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateways.envoy_proxy.support import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Everything, with the example's configurations."""
    with World.start(tmp_path) as started:
        yield started


@pytest.fixture
def caller(world: World) -> Iterator[httpx.Client]:
    """A caller of Envoy without an SDK."""
    with httpx.Client(base_url=world.url, timeout=30) as client:
        yield client
