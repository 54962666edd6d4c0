"""What compiles in its first test needs longer than a test usually may."""

from pathlib import Path

import pytest

from tests.conformance.clients import BUILD_SECONDS

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test of a client the time to build it."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))
