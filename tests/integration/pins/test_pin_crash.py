"""kill -9 under load: no promised pin lost, no worker with two bindings, the database whole each time (§5, §8).

The long form runs with `make soak`.
"""

from pathlib import Path

import pytest

from tests.contract.pin_samples import make_pin
from tests.integration.pins.children import Child
from tests.integration.pins.crash import kill_again_and_again
from tests.integration.pins.places import open_pins


async def test_killed_again_and_again_under_load(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "state", lives=8, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_killed_300_times_under_load(tmp_path: Path) -> None:
    for place in range(10):  # fresh directories: the check of a life reads everything promised before it
        await kill_again_and_again(tmp_path / f"state{place}", lives=30, seed=place)


async def test_killed_while_closing(tmp_path: Path) -> None:
    for n in range(3):
        with Child(tmp_path / "state") as child:
            assert child.greeting == {"ready": True}, child.greeting
            assert child.ask(f"create {n}")["created"] is True
            assert child.process.stdin is not None
            child.process.stdin.close()  # it begins to close the store
    store = await open_pins(tmp_path / "state")
    for n in range(3):
        assert await store.get(make_pin(str(n)).pin_id) == make_pin(str(n))
    await store.close()
