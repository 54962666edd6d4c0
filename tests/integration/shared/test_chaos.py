"""A network that delays, cuts, swallows and loses answers, between a store and its server (cases 22, 25, 26, 28)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import count

import pytest
from tidegate_server.core.flow.model import Entered, FlowAsk, FlowKey, FlowLimits, Refused, Unproved
from tidegate_server.core.model import SECOND, Quota
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import FlowStore
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.postgres.database import SIZE
from tidegate_server.stores.valkey.facts import ValkeyFactStore
from tidegate_server.stores.valkey.flows import FLOWS, flow_key
from tidegate_server.stores.valkey.link import Link
from tidegate_server.testing import fact
from tidegate_server.wiring.clock import SystemClock

from tests.contract.flow_store_contract import FLOW, ask, enter
from tests.contract.pin_samples import make_pin
from tests.support import servers
from tests.support.proxy import ChaosProxy, Mode
from tests.support.replicas import until
from tests.support.shared_stores import (
    KEY,
    OwningFlows,
    OwningPins,
    close_facts,
    open_durable,
    open_facts,
    open_pins,
)

WITHIN = 0.3
SLACK = 0.25
"""What a busy test machine may add to a store's own 300 ms."""

HURT = [Mode.CUT, Mode.BLACK_HOLE, Mode.NO_REPLY]
_numbers = count(1)


async def works(call: object) -> bool:
    try:
        await call  # type: ignore[misc]  # any awaitable
    except StoreUnavailable:
        return False
    return True


async def given_back(flows: FlowStore, hop_id: str) -> bool:
    return await works(flows.cancel(FLOW, hop_id))


class TestPins:
    @pytest.fixture
    async def proxy(self) -> AsyncIterator[ChaosProxy]:
        async with ChaosProxy(servers.postgres().port) as proxy:
            yield proxy

    @pytest.fixture
    async def pins(self, proxy: ChaosProxy) -> AsyncIterator[OwningPins]:
        server = servers.postgres()
        self.database = server.migrated_database()
        pins = await open_pins(server.dsn(self.database, proxy.port), size=4)
        yield pins
        proxy.set(Mode.PASS)
        await pins.close()

    @pytest.mark.parametrize("mode", HURT)
    async def test_nothing_is_answered_that_was_not_read_and_it_heals(
        self, proxy: ChaosProxy, pins: OwningPins, mode: Mode
    ) -> None:
        known, unknown = make_pin("known"), make_pin("unknown")
        await pins.create(known)
        proxy.set(mode)
        begun = time.monotonic()
        answers = await asyncio.gather(
            *(pins.get(make_pin(f"u{n}").pin_id) for n in range(100)),
            *(pins.create(make_pin(f"c{n}")) for n in range(100)),
            return_exceptions=True,
        )
        assert time.monotonic() - begun < WITHIN + SLACK
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        assert not pins.healthy()
        assert await pins.get(known.pin_id) == known  # what was read once needs no store
        proxy.set(Mode.PASS)
        await until(lambda: works(pins.get(unknown.pin_id)), 5, "reads")
        assert await pins.get(unknown.pin_id) is None
        await until(lambda: works(pins.create(unknown)), 5, "writes")
        assert pins.healthy()

    async def test_a_commit_whose_answer_was_lost_is_found_by_the_next(
        self, proxy: ChaosProxy, pins: OwningPins
    ) -> None:
        await pins.get(make_pin("warm").pin_id)
        pin = make_pin("a")
        proxy.set(Mode.NO_REPLY)
        with pytest.raises(StoreUnavailable):
            await pins.create(pin)
        proxy.set(Mode.PASS)
        await until(lambda: works(pins.get(make_pin("x").pin_id)), 5, "reads")
        assert await pins.create(make_pin("a", candidate="codex/other")) == (pin, False)

    @pytest.mark.parametrize(("many", "turns"), [(1, 1), (100, 2)])
    async def test_a_new_pin_is_one_round_trip_and_a_hundred_share_theirs(
        self, proxy: ChaosProxy, pins: OwningPins, many: int, turns: int
    ) -> None:
        await asyncio.gather(*(pins.get(make_pin(f"warm {n}").pin_id) for n in range(4)))
        seen = []
        for attempt in range(5):  # the beat and the look at retirements may fall into one of them
            before = proxy.turns
            new = [make_pin(f"{attempt} {n}") for n in range(many)]
            assert all(created for _, created in await asyncio.gather(*(pins.create(pin) for pin in new)))
            seen.append(proxy.turns - before)
        assert min(seen) <= turns

    async def test_a_slow_server_is_unavailable_in_time(self, proxy: ChaosProxy, pins: OwningPins) -> None:
        proxy.delay = 1.0
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await pins.get(make_pin("a").pin_id)
        assert time.monotonic() - begun < WITHIN + SLACK
        proxy.delay = 0.0
        await until(lambda: works(pins.get(make_pin("a").pin_id)), 5, "reads")

    async def test_case_26_the_pool_is_whole_after_an_outage_with_100_cancelled_waiters(
        self, proxy: ChaosProxy, pins: OwningPins
    ) -> None:
        """The outage has as many calls as one of minutes: what wears a pool out is calls, not time."""
        for mode in HURT:
            proxy.set(mode)
            for _ in range(10):
                tasks = [asyncio.ensure_future(pins._database.run("pins", "SELECT 1", {})) for _ in range(100)]
                await asyncio.sleep(0.01)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            proxy.set(Mode.PASS)
            await until(lambda: works(pins.get(make_pin("a").pin_id)), 5, "reads")
        inner = pins._database._inner  # type: ignore[attr-defined]  # the guarded one's own

        async def whole() -> bool:
            return bool(inner._free.qsize() == 4 and not inner._calls)

        await until(whole, 5, "all slots free")
        rows = await asyncio.gather(*(inner.run("pins", "SELECT pg_sleep(0.02)", {}) for _ in range(4)))
        assert len(rows) == 4

    async def test_a_lock_that_somebody_holds_costs_300_ms_and_no_slot(self, pins: OwningPins) -> None:
        pin = make_pin("locked")
        record, checksum = pins._codec.seal(pin)
        database = servers.postgres()
        import psycopg  # noqa: PLC0415 - one test's own connection

        with psycopg.connect(database.dsn(self.database)) as other:
            other.execute(
                "INSERT INTO tidegate_pin (pin_id, record, checksum) VALUES (%s, %s, %s)",
                (pin.pin_id, record, checksum),
            )
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await pins.create(make_pin("locked", candidate="codex/other"))
            assert time.monotonic() - begun < WITHIN + SLACK

            async def nobody_waits_there() -> bool:
                waiting = database.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", self.database
                )
                return waiting == [(0,)]

            await until(nobody_waits_there, 2, "the server gave the statement up")
            other.commit()
        await until(lambda: works(pins.get(make_pin("x").pin_id)), 5, "reads")
        # The winner that was not committed when we came is the one that everybody gets.
        assert await pins.create(make_pin("locked", candidate="codex/other")) == (pin, False)

    async def test_an_uncommitted_winner_is_waited_for_and_not_missed(self, pins: OwningPins) -> None:
        import psycopg  # noqa: PLC0415 - as above

        pin = make_pin("slow")
        record, checksum = pins._codec.seal(pin)
        with psycopg.connect(servers.postgres().dsn(self.database)) as other:
            other.execute(
                "INSERT INTO tidegate_pin (pin_id, record, checksum) VALUES (%s, %s, %s)",
                (pin.pin_id, record, checksum),
            )
            losing = asyncio.ensure_future(pins.create(make_pin("slow", candidate="codex/other")))
            await asyncio.sleep(0.05)
            other.commit()
        assert await losing == (pin, False)


class TestFlows:
    @pytest.fixture
    async def proxy(self) -> AsyncIterator[ChaosProxy]:
        with servers.valkey().client() as client:
            client.flushall()
        async with ChaosProxy(servers.valkey().port) as proxy:
            yield proxy

    @pytest.fixture
    async def flows(self, proxy: ChaosProxy) -> AsyncIterator[FlowStore]:
        clock, url = SystemClock(), servers.valkey().url(proxy.port)
        link = Link(url, [FLOWS], clock)
        await link.open()
        store = GuardedFlowStore(OwningFlows(link, url, clock), clock)
        yield store
        proxy.set(Mode.PASS)
        await store.close()

    @pytest.mark.parametrize("mode", HURT)
    async def test_case_22_every_hop_is_refused_within_300_ms_and_none_is_counted_here(
        self, proxy: ChaosProxy, flows: FlowStore, mode: Mode
    ) -> None:
        await enter(flows, "", "A")
        proxy.set(mode)
        begun = time.monotonic()
        answers = await asyncio.gather(*(flows.enter(ask("A", "B")) for _ in range(100)), return_exceptions=True)
        assert time.monotonic() - begun < WITHIN + SLACK
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)
        assert not flows.healthy()
        proxy.set(Mode.PASS)
        await until(lambda: works(flows.sweep(10)), 5, "the flow store")
        await until(lambda: works(flows.sweep(10)), 5, "what was lost is given back")
        found = await flows.get(FLOW)
        assert found is not None
        # Grants whose answers were lost have no owner; they were given back, so the flow is as it was.
        assert len(found[0].hops) == 1
        assert isinstance(await flows.enter(ask("A", "B")), Entered)
        assert flows.healthy()

    async def test_hops_of_one_moment_are_one_round_trip(self, proxy: ChaosProxy, flows: FlowStore) -> None:
        await enter(flows, "", "A", limits=FlowLimits(max_fan_out=1_000))
        await flows.check(FlowAsk(FLOW, Unproved.NO_MEMBER, "A"))  # the flow is on the list by now
        before = proxy.turns
        answers = await asyncio.gather(*(flows.enter(ask("A", f"B{n}")) for n in range(100)))
        assert proxy.turns - before == 1
        assert all(isinstance(answer, Entered) for answer in answers)

    async def test_case_28_cancelled_callers_leave_nothing_open(self, flows: FlowStore) -> None:
        await enter(flows, "", "A", limits=FlowLimits(max_fan_out=100_000, max_tokens=1_000_000))
        for batch in range(30):
            tasks = [asyncio.ensure_future(flows.enter(ask("A", "B", reserve=1))) for _ in range(10)]
            for turn in range(batch % 5):
                del turn
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            granted = [a for a in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(a, Entered)]
            for answer in granted:
                await until(partial(given_back, flows, answer.hop.hop_id), 5, "a hop given back")

        async def only_the_root() -> bool:
            try:
                await flows.sweep(10)
                found = await flows.get(FLOW)
            except StoreUnavailable:
                return False
            return found is not None and len(found[0].hops) == 1

        await until(only_the_root, 5, "no hop without an owner")

    async def test_case_25_a_server_without_the_functions_gets_them_again(self, flows: FlowStore) -> None:
        await enter(flows, "", "A", limits=FlowLimits(max_fan_out=1_000))
        with servers.valkey().client() as client:
            for _ in range(5):
                calls = [asyncio.ensure_future(flows.enter(ask("A", "B"))) for _ in range(20)]
                client.function_flush("SYNC")
                assert all(isinstance(answer, Entered) for answer in await asyncio.gather(*calls))
        found = await flows.get(FLOW)
        assert found is not None
        assert len(found[0].hops) == 101

    async def test_case_25_an_error_of_the_function_is_a_refusal_and_health_runs_a_function(
        self, flows: FlowStore
    ) -> None:
        await enter(flows, "", "A")
        with servers.valkey().client() as client:
            key = flow_key(FLOW)
            client.rename(key, f"{key}:kept")
            client.set(key, "not a hash")
            for _ in range(6):
                with pytest.raises(StoreUnavailable):
                    await flows.enter(ask("A", "B"))
            assert not flows.healthy()
            client.rename(f"{key}:kept", key)
        await until(lambda: works(flows.sweep(1)), 5, "the flow store")
        assert isinstance(await flows.enter(ask("A", "B")), Entered)

    def test_case_25_all_keys_of_a_flow_are_one_key_in_one_slot(self) -> None:
        for trace_id in (f"{n:032x}" for n in range(1, 1001)):
            key = flow_key(FlowKey("team {a}", trace_id))
            tag = key[key.index("{") + 1 : key.index("}")]
            assert key.count("{") == key.count("}") == 1
            assert tag.endswith(trace_id)

    async def test_what_is_refused_while_others_are_granted_stays_within_the_limit(self, flows: FlowStore) -> None:
        limits = FlowLimits(max_fan_out=8)
        await enter(flows, "", "A", limits=limits)
        answers = await asyncio.gather(*(flows.enter(ask("A", "B")) for _ in range(50)))
        assert sum(isinstance(answer, Entered) for answer in answers) == 7
        assert sum(isinstance(answer, Refused) for answer in answers) == 43


class TestFacts:
    @pytest.fixture
    async def proxy(self) -> AsyncIterator[ChaosProxy]:
        with servers.valkey().client() as client:
            client.flushall()
        async with ChaosProxy(servers.valkey().port) as proxy:
            yield proxy

    @pytest.fixture
    async def facts(self, proxy: ChaosProxy) -> AsyncIterator[ValkeyFactStore]:
        store = await open_facts(servers.valkey().url(proxy.port))
        yield store
        proxy.set(Mode.PASS)
        await close_facts(store)

    @pytest.mark.parametrize("mode", HURT)
    async def test_a_copy_that_may_be_old_is_not_served_and_heals(
        self, proxy: ChaosProxy, facts: ValkeyFactStore, mode: Mode
    ) -> None:
        other = await open_facts(servers.valkey().url())
        now = SystemClock().monotonic()
        await other.put([fact("p", "", Quota("5h", 50), now=now - SECOND)])

        async def shows(percent: float) -> bool:
            values = [f.value for f in facts.facts(frozenset())]
            return [v.remaining_percent for v in values if isinstance(v, Quota)] == [percent]

        await until(lambda: shows(50), 1, "the fact on both")
        proxy.set(mode)

        async def refuses() -> bool:
            try:
                dict(facts.groups())
            except StoreUnavailable:
                return True
            return False

        await until(refuses, 1.5, "the copy is not served")
        assert not facts.healthy()
        await other.put([fact("p", "", Quota("5h", 10), now=SystemClock().monotonic())])
        with pytest.raises(StoreUnavailable):
            facts.groups().get(("p", ""))
        with pytest.raises(StoreUnavailable):
            await facts.put([fact("p", "", Quota("5h", 99), now=now)])
        proxy.set(Mode.PASS)

        async def healed() -> bool:
            return not await refuses() and await shows(10)

        await until(healed, 5, "the copy was read anew")
        await close_facts(other)

    async def test_a_change_that_was_missed_is_noticed(self, facts: ValkeyFactStore) -> None:
        """A version that never came, while the connection stands: the copy is read anew."""
        now = SystemClock().monotonic()
        await facts.put([fact("p", "", Quota("5h", 50), now=now)])
        with servers.valkey().client() as client:
            client.hincrby("tidegate:{facts}", "version", 1)
            version = client.hget("tidegate:{facts}", "version")

        async def caught_up() -> bool:
            return facts._whole and facts._version == int(version or 0)

        await until(caught_up, 2, "the version that was not told")
        assert len(facts.facts(frozenset())) == 1

    async def test_an_emptied_server_empties_the_copy(self, facts: ValkeyFactStore) -> None:
        await facts.put([fact("p", "", Quota("5h", 50), now=SystemClock().monotonic())])
        with servers.valkey().client() as client:
            client.flushall()

        async def empty() -> bool:
            return facts.healthy() and not facts.facts(frozenset())

        await until(empty, 2, "nothing is served that the store has not")

    async def test_a_delay_makes_facts_older_and_never_younger(self, proxy: ChaosProxy, facts: ValkeyFactStore) -> None:
        proxy.delay = 0.05
        for number in range(5):
            put = fact(f"p{number}", "", Quota("5h", 50), now=SystemClock().monotonic(), age=SECOND)
            await facts.put([put])
            (stored,) = facts.facts(frozenset({f"p{number}"}))
            assert stored.captured <= put.captured
            assert put.captured - stored.captured < SECOND // 2


class TestServers:
    async def test_another_key_is_refused(self) -> None:
        server = servers.postgres()
        database = server.dsn(server.migrated_database())
        await (await open_pins(database)).close()
        with pytest.raises(UnsafeState, match="another key"):
            await open_durable(database, bytes(reversed(KEY)))

    async def test_a_database_without_a_schema_is_refused(self) -> None:
        server = servers.postgres()
        with pytest.raises(UnsafeState, match="tidegate migrate"):
            await open_durable(server.dsn(server.new_database()))

    async def test_a_newer_schema_is_refused(self) -> None:
        server = servers.postgres()
        name = server.migrated_database()
        server.execute("INSERT INTO tidegate_migration (name) VALUES ('9999_pre_more')", name)
        await (await open_durable(server.dsn(name))).close()  # what a newer version only added does not matter
        server.execute("INSERT INTO tidegate_migration (name) VALUES ('9999_post_less')", name)
        with pytest.raises(UnsafeState, match="9999_post_less"):
            await open_durable(server.dsn(name))

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    async def test_a_server_that_may_evict_is_refused_or_warned_of(self, policy: str) -> None:
        with servers.running(server := servers.Valkey(settings=["--maxmemory-policy", policy])):
            link = Link(server.url(), [FLOWS], SystemClock())
            await link.open()
            assert any(policy in warning for warning in link.warnings())
            await link.close()
            with server.client() as client:
                client.config_set("maxmemory", "100mb")
            link = Link(server.url(), [FLOWS], SystemClock())
            with pytest.raises(UnsafeState, match=policy):
                await link.open()
            await link.close()

    async def test_the_pool_never_makes_more_connections_than_it_may(self) -> None:
        server = servers.postgres()
        name = server.migrated_database()
        async with AsyncExitStack() as stack:
            database = await open_durable(server.dsn(name), size=SIZE)
            stack.push_async_callback(database.close)
            calls = (database.run("pins", "SELECT pg_sleep(0.01)", {}) for _ in range(100))
            await asyncio.gather(*calls, return_exceptions=True)  # a busy machine may be too slow for the last ones
            rows = server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'", "postgres")
            assert 1 < int(str(rows[0][0])) <= SIZE
