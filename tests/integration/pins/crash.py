"""Kill a process that stores pins, at random points, again and again, and look at what is left each time."""

import random
from pathlib import Path

from tidegate_server.core.model import Pin

from tests.contract.pin_samples import make_pin
from tests.integration.pins.children import Child
from tests.integration.pins.places import database, open_pins


class Promises:
    """Everything that callers were told, over all lives of the server."""

    def __init__(self) -> None:
        self.candidates: dict[str, str] = {}
        self.created: set[str] = set()
        self.retired: set[str] = set()

    def note(self, answer: dict[str, object]) -> None:
        """Take one answer down; two different bindings for one worker, or two creations, end the test."""
        if "retired" in answer:
            self.retired.add(str(answer["retired"]))
            return
        name, candidate = str(answer["name"]), str(answer["candidate"])
        assert self.candidates.setdefault(name, candidate) == candidate, f"{name} was told two bindings"
        if answer["created"]:
            assert name not in self.created, f"{name} was created twice"
            self.created.add(name)

    async def check(self, state: Path) -> None:
        """Open what the killed process left: every promise must be kept."""
        store = await open_pins(state)
        try:
            with database(state) as connection:
                assert connection.pragma("integrity_check") == "ok"
            for name, candidate in self.candidates.items():
                pin = await store.get(make_pin(name).pin_id)
                assert isinstance(pin, Pin), f"{name} was promised and is lost"
                assert pin.candidate == candidate, f"{name} was moved"
                assert pin.retired or name not in self.retired, f"{name} came back"
            census = await store.verify()
            assert census.corrupt == ()
            assert census.checked >= len(self.candidates)
        finally:
            await store.close()


async def kill_again_and_again(state: Path, lives: int, seed: int) -> None:
    """So many lives, each ended by kill -9 after a random number of answers, also before the first."""
    chance = random.Random(seed)
    promises = Promises()
    for life in range(lives):
        with Child(state) as child:
            assert child.greeting == {"ready": True}, child.greeting
            child.say(f"load {life * 1_000_000}")
            for _ in range(chance.randrange(400)):
                promises.note(child.hear())
            for answer in child.kill():
                promises.note(answer)
        await promises.check(state)
    assert promises.created
