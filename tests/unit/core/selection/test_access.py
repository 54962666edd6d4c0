"""Who may see an agent, who may change it, what a name means, what cannot be registered."""

import pytest
from tidegate_server.core.selection.access import accessible, faults, find, may_remove, may_replace, may_see
from tidegate_server.core.selection.model import Agent

OPEN = Agent("open", "Open", owner="ann")
SHARED = Agent("shared", "Shared", owner="ann", visible_to=("bob",))
OWN = Agent("own", "Own", owner="ann", visible_to=("ann",))


@pytest.mark.parametrize(
    ("agent", "caller", "seen"),
    [
        (OPEN, "", True),
        (OPEN, "eve", True),
        (SHARED, "bob", True),
        (SHARED, "ann", True),
        (SHARED, "eve", False),
        (SHARED, "Bob", False),
        (SHARED, "", False),
        (OWN, "bob", False),
        (Agent("x", "X", owner="", visible_to=("bob",)), "", False),
    ],
)
def test_an_agent_is_for_its_owner_and_for_those_it_names(agent: Agent, caller: str, seen: bool) -> None:
    assert may_see(agent, caller) is seen


def test_the_fleet_stands_in_the_order_of_ids() -> None:
    assert accessible([SHARED, OPEN, OWN], "bob") == (OPEN, SHARED)


def test_only_its_registrar_or_owner_replaces_an_agent_and_never_its_owner() -> None:
    assert may_replace(OPEN, registrar="edge", owner="ann", identity="edge")
    assert may_replace(OPEN, registrar="edge", owner="ann", identity="ann")
    assert not may_replace(OPEN, registrar="edge", owner="ann", identity="other-gateway")
    assert not may_replace(OPEN, registrar="edge", owner="eve", identity="edge")


def test_an_operator_removes_any_agent() -> None:
    assert may_remove(OPEN, "edge", "ops", operator=True)
    assert not may_remove(OPEN, "edge", "ops", operator=False)
    assert may_remove(OPEN, "edge", "edge", operator=False)
    assert may_remove(OPEN, "edge", "ann", operator=False)


def test_an_id_goes_before_a_name_and_a_name_of_two_picks_none_for_itself() -> None:
    twin, other, id_like = Agent("a", "Twin"), Agent("b", "Twin"), Agent("c", "a")
    assert find("a", [twin, other, id_like]) == (twin,)
    assert find("Twin", [twin, other, id_like]) == (twin, other)
    assert find("twin", [twin, other]) == ()
    assert find(" a", [twin]) == ()


@pytest.mark.parametrize(
    ("agent", "fields"),
    [
        (Agent("billing", "Billing"), []),
        (Agent("", ""), ["agent_id", "name"]),
        (Agent("orchestrator", "X"), ["agent_id"]),
        (Agent("x", "orchestrator"), ["name"]),
        (Agent("x\n", "X"), ["agent_id"]),
        (Agent("x" * 257, "X"), ["agent_id"]),
        (Agent("x", "X", description="d" * 8193), ["description"]),
        (Agent("x", "X", skills=("ok", ""), visible_to=("a\x00",)), ["skills[1]", "visible_to[0]"]),
        (Agent("x", "X", tags=tuple(map(str, range(257)))), ["tags"]),
    ],
)
def test_every_fault_of_a_registration_names_its_field(agent: Agent, fields: list[str]) -> None:
    assert [field for field, _ in faults(agent)] == fields
