"""A primary that dies or is demoted: nothing is read from it any more, and what was stored is found (case 26)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tidegate_server.core.flow.model import Entered
from tidegate_server.core.model import Quota
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.postgres.migrate import migrate
from tidegate_server.stores.valkey.flows import FLOWS
from tidegate_server.stores.valkey.link import Link
from tidegate_server.testing import fact
from tidegate_server.wiring.clock import SystemClock

from tests.contract.flow_store_contract import FLOW, ask, enter
from tests.contract.pin_samples import make_pin
from tests.support.proxy import ChaosProxy
from tests.support.replicas import ROUTE, Place, inside, quota, until
from tests.support.servers import Postgres, Valkey, running
from tests.support.shared_stores import OwningFlows, close_facts, open_facts, open_pins

RECOVERED = 30.0


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A primary of this module's own; its databases are made per test."""
    server = Postgres()
    with running(server):
        yield server


@pytest.fixture
def database(primary: Postgres) -> str:
    name = primary.new_database()
    migrate(primary.dsn(name))
    return name


async def reads(pins: object, name: str) -> bool:
    try:
        await pins.get(make_pin(name).pin_id)  # type: ignore[attr-defined]  # a store of pins
    except StoreUnavailable:
        return False
    return True


async def test_a_standby_is_never_read_and_its_promotion_is_noticed(primary: Postgres, database: str) -> None:
    """The address moves from the primary to its standby, which is promoted a moment later."""
    standby = Postgres(primary)
    with running(standby):
        async with ChaosProxy(primary.port) as proxy:
            pins = await open_pins(primary.dsn(database, proxy.port))
            stored = make_pin("stored")
            await pins.create(stored)

            async def replicated() -> bool:
                return bool(standby.execute("SELECT 1 FROM tidegate_pin", database))

            await until(replicated, 10, "the pin on the standby")
            proxy.point_to(standby.port)
            for name in ("new", "stored elsewhere"):
                for _ in range(3):
                    with pytest.raises(StoreUnavailable):  # never "there is no pin"
                        await pins.get(make_pin(name).pin_id)
                    with pytest.raises(StoreUnavailable):
                        await pins.create(make_pin(name))
            assert not pins.healthy()
            standby.execute("SELECT pg_promote()")
            assert await until(lambda: reads(pins, "new"), RECOVERED, "the promoted standby") < RECOVERED
            pins._cache.clear()
            assert await pins.get(stored.pin_id) == stored
            assert (await pins.create(make_pin("new")))[1]
            await pins.close()


async def test_a_primary_that_was_made_read_only_is_not_read(primary: Postgres, database: str) -> None:
    pins = await open_pins(primary.dsn(database))
    await pins.create(make_pin("a"))
    primary.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    primary.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await pins.get(make_pin("b").pin_id)
    assert any("takes no writes" in warning for warning in pins.warnings())
    primary.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
    await until(lambda: reads(pins, "b"), RECOVERED, "writes are taken again")
    await pins.close()


async def test_a_cached_pin_does_not_outlive_a_failover_that_lost_it(primary: Postgres, database: str) -> None:
    """Replication is asynchronous unless an operator makes it otherwise; a lost pin is not answered for ever."""
    standby = Postgres(primary)
    with running(standby):
        standby.execute("SELECT pg_wal_replay_pause()")
        async with ChaosProxy(primary.port) as proxy:
            pins = await open_pins(primary.dsn(database, proxy.port))
            await pins.create(make_pin("lost"))
            standby.execute("SELECT pg_promote(false)")

            async def promoted() -> bool:
                return standby.execute("SELECT pg_is_in_recovery()") == [(False,)]

            proxy.point_to(standby.port)
            standby.execute("SELECT pg_wal_replay_resume()")
            await until(promoted, 10, "the promotion")

            async def looked() -> bool:
                try:
                    await pins.look()
                except StoreUnavailable:
                    return False
                return pins.peek(make_pin("lost").pin_id) is None

            await until(looked, RECOVERED, "another timeline empties the cache")
            await pins.close()


async def test_postgresql_killed_and_started_again(primary: Postgres, database: str) -> None:
    pins = await open_pins(primary.dsn(database))
    stored = [make_pin(f"{n}") for n in range(20)]
    await asyncio.gather(*(pins.create(pin) for pin in stored))
    primary.kill()

    async def gone() -> bool:  # its children answer until they see that they are alone
        return not await reads(pins, "x")

    await until(gone, 5, "no answer")
    await asyncio.to_thread(primary.start)
    assert await until(lambda: reads(pins, "x"), RECOVERED, "reads") < RECOVERED
    pins._cache.clear()
    assert await asyncio.gather(*(pins.get(pin.pin_id) for pin in stored)) == stored
    await pins.close()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Valkey, Valkey]]:
    first = Valkey()
    with running(first):
        second = Valkey(first)
        with running(second):
            with second.client() as client:
                while client.info("replication")["master_link_status"] != "up":
                    await asyncio.sleep(0.02)
            yield first, second


async def test_flows_go_on_on_the_promoted_replica(pair: tuple[Valkey, Valkey]) -> None:
    first, second = pair
    clock = SystemClock()
    async with ChaosProxy(first.port) as proxy:
        url = first.url(proxy.port)
        link = Link(url, [FLOWS], clock)
        await link.open()
        flows = GuardedFlowStore(OwningFlows(link, url, clock), clock)
        a = await enter(flows, "", "A", reserve=40)
        with first.client() as client:
            client.wait(1, 5000)
        proxy.point_to(second.port)  # a replica still: what it says is no answer
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await flows.enter(ask("A", "B"))
        assert not flows.healthy()
        first.kill()
        with second.client() as client:
            client.replicaof("NO", "ONE")

        async def grants() -> bool:
            try:
                return isinstance(await flows.enter(ask("A", "B")), Entered)
            except StoreUnavailable:
                return False

        begun = time.monotonic()
        await until(grants, RECOVERED, "the promoted replica")
        assert time.monotonic() - begun < RECOVERED
        found = await flows.get(FLOW)
        assert found is not None
        assert (found[0].hops[a.hop_id], found[0].tokens) == (a, 40)
        await flows.close()


async def test_a_replica_of_valkey_is_refused_at_the_start(pair: tuple[Valkey, Valkey]) -> None:
    link = Link(pair[1].url(), [FLOWS], SystemClock())
    with pytest.raises(UnsafeState, match="replica"):
        await link.open()
    await link.close()


async def test_a_demoted_primary_of_facts_is_left(pair: tuple[Valkey, Valkey]) -> None:
    """REPLICAOF turns the roles around while both stay up: reads would work there, and must not count."""
    first, second = pair
    async with ChaosProxy(first.port) as proxy:
        facts = await open_facts(first.url(proxy.port))
        await facts.put([fact("p", "", Quota("5h", 50), now=SystemClock().monotonic())])
        with first.client() as client:
            client.wait(1, 5000)
        with second.client() as client:
            client.replicaof("NO", "ONE")
        with first.client() as client:
            client.replicaof("127.0.0.1", str(second.port))
        with pytest.raises(StoreUnavailable):
            await facts.put([fact("p", "", Quota("5h", 40), now=SystemClock().monotonic())])
        proxy.point_to(second.port)

        async def takes_facts() -> bool:
            try:
                await facts.put([fact("p", "", Quota("5h", 30), now=SystemClock().monotonic())])
            except StoreUnavailable:
                return False
            values = [f.value for f in facts.facts(frozenset())] if facts.healthy() else []
            return [v.remaining_percent for v in values if isinstance(v, Quota)] == [30]

        await until(takes_facts, RECOVERED, "facts on the new primary")
        await close_facts(facts)


async def test_a_whole_server_heals_after_both_were_restarted(tmp_path: Path) -> None:
    """Down for longer than every patience, then back: SERVING again without a restart of ours."""
    postgres, valkey = Postgres(), Valkey()
    with running(postgres, valkey):
        name = postgres.new_database()
        migrate(postgres.dsn(name))
        place = Place(tmp_path, durable=postgres.dsn(name), live=valkey.url())
        async with inside(place.write("a")) as server:
            client = server.client
            await client.report_capacity("c", [quota("claude", 50)])
            bound = await client.admit(ROUTE, "w", 10)
            postgres.kill()
            valkey.kill()

            async def not_serving() -> bool:
                return not await client.serving("tidegate.v1.AdmissionService")

            await until(not_serving, 5, "NOT_SERVING")
            await asyncio.to_thread(postgres.start)
            await asyncio.to_thread(valkey.start)
            took = await until(client.serving, RECOVERED, "SERVING")
            assert took < RECOVERED
            again = await client.admit(ROUTE, "w", 10)
            assert again.response.binding == bound.response.binding
