"""What every store of agents keeps to; a store joins by a class of its own with the fixture `store`."""

import asyncio
from array import array

from tidegate_server.core.selection.model import Agent, Turn
from tidegate_server.ports import AgentEntry, AgentStore

BILLING = AgentEntry(
    Agent("billing", "Billing", "invoices", ("refund",), ("money",), "ann", ("bob", "eve"), "https://agents.example/b"),
    "edge",
)
TRAVEL = AgentEntry(Agent("travel", "Travel", "books trips"), "edge")


class AgentStoreContract:
    """The suite."""

    async def test_an_entry_comes_back_as_it_was_put(self, store: AgentStore) -> None:
        assert await store.put("default", BILLING, replaces=None)
        assert await store.get("default", "billing") == BILLING
        assert await store.get("default", "Billing") is None
        assert await store.get("other", "billing") is None

    async def test_an_entry_is_replaced_only_by_one_who_knows_it(self, store: AgentStore) -> None:
        changed = BILLING._replace(agent=BILLING.agent._replace(description="bills"))
        assert await store.put("default", BILLING, replaces=None)
        assert not await store.put("default", changed, replaces=None)
        assert not await store.put("default", changed, replaces=BILLING._replace(registrar="somebody"))
        assert await store.get("default", "billing") == BILLING
        assert await store.put("default", changed, replaces=BILLING)
        assert await store.get("default", "billing") == changed
        assert not await store.put("default", TRAVEL, replaces=TRAVEL)

    async def test_of_two_at_once_one_wins(self, store: AgentStore) -> None:
        rivals = [BILLING._replace(registrar=f"gateway-{i}") for i in range(8)]
        won = await asyncio.gather(*(store.put("default", rival, replaces=None) for rival in rivals))
        assert sum(won) == 1
        assert await store.get("default", "billing") == rivals[won.index(True)]

    async def test_an_entry_is_removed_only_as_it_stands(self, store: AgentStore) -> None:
        await store.put("default", BILLING, replaces=None)
        assert not await store.remove("default", BILLING._replace(registrar="other"))
        assert not await store.remove("other", BILLING)
        assert await store.remove("default", BILLING)
        assert not await store.remove("default", BILLING)
        assert await store.get("default", "billing") is None

    async def test_names_are_found_exactly_and_in_the_order_of_ids(self, store: AgentStore) -> None:
        for agent_id, name in (("b", "Twin"), ("a", "Twin"), ("c", "twin")):
            await store.put("default", AgentEntry(Agent(agent_id, name), "edge"), replaces=None)
        assert [entry.agent.agent_id for entry in await store.named("default", "Twin")] == ["a", "b"]
        assert await store.named("other", "Twin") == []
        await store.put(
            "default", AgentEntry(Agent("a", "Other"), "edge"), replaces=AgentEntry(Agent("a", "Twin"), "edge")
        )
        assert [entry.agent.agent_id for entry in await store.named("default", "Twin")] == ["b"]

    async def test_entries_are_paged_in_the_order_of_ids(self, store: AgentStore) -> None:
        for agent_id in ("d", "b", "é", "a", "C"):
            await store.put("default", AgentEntry(Agent(agent_id, agent_id), "edge"), replaces=None)
        await store.put("other", BILLING, replaces=None)
        first = await store.entries("default", after="", limit=3)
        rest = await store.entries("default", after=first[-1].agent.agent_id, limit=3)
        assert [entry.agent.agent_id for entry in (*first, *rest)] == ["C", "a", "b", "d", "é"]

    async def test_a_session_keeps_its_newest_turns(self, store: AgentStore) -> None:
        for i in range(7):
            await store.append_turn("default", "s1", Turn("user", f"turn {i}", f"agent {i}"), keep=4, when=i)
        await store.append_turn("default", "s2", Turn("user", "elsewhere"), keep=4, when=1)
        kept = [Turn("user", f"turn {i}", f"agent {i}") for i in range(3, 7)]
        assert list(await store.turns("default", "s1", limit=10)) == kept
        assert list(await store.turns("default", "s1", limit=2)) == kept[2:]
        assert list(await store.turns("other", "s1", limit=10)) == []
        await store.append_turn("default", "s1", Turn("user", "last"), keep=1, when=9)
        assert list(await store.turns("default", "s1", limit=10)) == [Turn("user", "last")]

    async def test_a_session_is_forgotten_by_its_newest_turn(self, store: AgentStore) -> None:
        for session, times in (("old", (1, 2)), ("used", (1, 9)), ("new", (9,))):
            for when in times:
                await store.append_turn("default", session, Turn("user", "x"), keep=5, when=when)
        assert await store.forget_sessions(9) == 1
        assert list(await store.turns("default", "old", limit=5)) == []
        assert len(await store.turns("default", "used", limit=5)) == 2

    async def test_vectors_live_in_their_space(self, store: AgentStore) -> None:
        one, two = array("f", [0.25, -1.5, 3.0]), array("f", [1.0])
        await store.put_vectors("model-a", {b"1": one, b"2": two})
        await store.put_vectors("model-b", {b"1": two})
        assert dict(await store.vectors("model-a", [b"1", b"2", b"3"])) == {b"1": one, b"2": two}
        assert dict(await store.vectors("model-b", [b"1", b"2"])) == {b"1": two}
        assert dict(await store.vectors("model-c", [b"1"])) == {}
        await store.put_vectors("model-a", {b"1": two})
        assert dict(await store.vectors("model-a", [b"1"])) == {b"1": two}

    async def test_a_fleet_of_vectors_is_read_at_once(self, store: AgentStore) -> None:
        fleet = {f"{i}".encode(): array("f", [i]) for i in range(1201)}
        await store.put_vectors("model", fleet)
        assert dict(await store.vectors("model", list(fleet))) == fleet

    async def test_a_store_in_use_is_healthy(self, store: AgentStore) -> None:
        await store.put("default", BILLING, replaces=None)
        assert store.healthy()
