"""An operator clears rows of exactly one subject, and what was captured before does not come back."""

import pytest
from tidegate_server.core.model import (
    SECOND,
    Availability,
    AvailabilityState,
    Blocker,
    Caller,
    Fact,
    ObservationResult,
    Tier,
)
from tidegate_server.core.policy import KnownProvider, Policy
from tidegate_server.errors import InvalidRequest, NotFound
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.testing import FakeClock, fact
from tidegate_server.usecases.clear_blockers import ClearBlockers
from tidegate_server.usecases.policies import Policies

POLICY = Policy("rev", {}, {}, {"p": KnownProvider(Tier.SUBSCRIPTION, {"m": "m", "engine-m": "m"})}, ())
OPERATOR = Caller("ops", "default", frozenset({"operator"}))


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.facts = MemoryFactStore(self.clock)
        self.clear = ClearBlockers(Policies(POLICY), self.facts, self.clock)

    def row(self, model: str, kind: Blocker, age: int = 1) -> Fact:
        value = Availability(AvailabilityState.BLOCKED, kind)
        return fact("p", model, value, now=self.clock.monotonic(), age=age * SECOND, collector="c")

    def blocking(self) -> set[tuple[str, str]]:
        groups = self.facts.groups()
        return {(row.key.model, row.key.part) for group in groups.values() for row in group.rows}


@pytest.fixture
async def world() -> World:
    world = World()
    rows = [world.row(model, kind) for model in ("", "m") for kind in (Blocker.AUTH_FAILED, Blocker.ACCOUNT_DISABLED)]
    await world.facts.put(rows)
    return world


async def test_rows_of_one_subject_are_lifted_and_counted(world: World) -> None:
    assert await world.clear("p", "", Blocker.NONE, "paid", OPERATOR) == 2
    assert world.blocking() == {("m", "AUTH_FAILED"), ("m", "ACCOUNT_DISABLED")}
    assert await world.clear("p", "engine-m", Blocker.AUTH_FAILED, "new key", OPERATOR) == 1
    assert world.blocking() == {("m", "ACCOUNT_DISABLED")}
    assert await world.clear("p", "", Blocker.RATE_LIMITED, "why not", OPERATOR) == 0


async def test_an_older_row_does_not_come_back_and_a_newer_one_counts(world: World) -> None:
    await world.clear("p", "", Blocker.ACCOUNT_DISABLED, "paid", OPERATOR)
    await world.clock.advance(3 * SECOND)
    again = await world.facts.put([world.row("", Blocker.ACCOUNT_DISABLED, age=4)])
    assert again == [ObservationResult.SUPERSEDED]
    assert ("", "ACCOUNT_DISABLED") not in world.blocking()
    assert await world.facts.put([world.row("", Blocker.ACCOUNT_DISABLED, age=1)]) == [ObservationResult.ACCEPTED]
    assert ("", "ACCOUNT_DISABLED") in world.blocking()


async def test_what_is_asked_for_has_to_exist_and_to_have_a_reason(world: World) -> None:
    with pytest.raises(NotFound):
        await world.clear("nobody", "", Blocker.NONE, "why", OPERATOR)
    with pytest.raises(NotFound):
        await world.clear("p", "nothing", Blocker.NONE, "why", OPERATOR)
    with pytest.raises(InvalidRequest):
        await world.clear("p", "", Blocker.NONE, " ", OPERATOR)
