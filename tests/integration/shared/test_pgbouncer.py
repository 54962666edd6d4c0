"""Behind PgBouncer in transaction mode: nothing depends on a session (case 38), and many processes share pins (33)."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate_server.core.decision_record import DecisionRecord
from tidegate_server.ports import PinFilter
from tidegate_server.stores.postgres.agents import PostgresAgentStore
from tidegate_server.stores.postgres.decisions import PostgresDecisionStore
from tidegate_server.stores.postgres.migrate import migrate

from tests.contract.agent_store_contract import BILLING
from tests.contract.pin_samples import make_pin
from tests.support import servers
from tests.support.replicas import ROUTE, Place, quota, replica
from tests.support.shared_stores import open_durable, open_pins

pytestmark = servers.needs_pgbouncer


@pytest.fixture
def bouncer() -> Iterator[servers.PgBouncer]:
    """Two server connections for everybody."""
    pooler = servers.PgBouncer(servers.postgres(), size=2)
    with servers.running(pooler):
        yield pooler


async def test_every_kind_of_statement_works_with_two_connections_for_all(bouncer: servers.PgBouncer) -> None:
    name = servers.postgres().new_database()
    assert migrate(bouncer.dsn(name), ["pre"])
    assert migrate(bouncer.dsn(name))
    assert not migrate(bouncer.dsn(name))
    stores = [await open_pins(bouncer.dsn(name), size=8) for _ in range(4)]
    pins = [make_pin(str(n)) for n in range(400)]
    stored = await asyncio.gather(*(stores[n % 4].create(pin) for n, pin in enumerate(pins)))
    assert all(created for _, created in stored)
    assert {(await stores[0].get(pin.pin_id)) for pin in pins} == set(pins)
    retired = await stores[1].retire(PinFilter(pin_id=pins[0].pin_id), who="w", when=1, why="y", dry_run=False)
    assert retired == 1
    await stores[2].look()
    assert await stores[2].get(pins[0].pin_id) == pins[0]._replace(retired=True)
    assert await stores[3].verify() == (400, ())
    database = await open_durable(bouncer.dsn(name))
    agents, decisions = PostgresAgentStore(database), PostgresDecisionStore(database)
    assert await agents.put("default", BILLING, replaces=None)
    await decisions.write([DecisionRecord("id", 1, "admission", "r", "ADMITTED")])
    await database.close()
    for store in stores:
        await store.close()


async def test_case_38_admissions_on_two_connections_without_one_error(
    bouncer: servers.PgBouncer, tmp_path: Path
) -> None:
    """50 in parallel, each with a pin of its own: as many statements as two minutes of a quieter client have."""
    postgres, valkey = servers.postgres(), servers.valkey()
    with valkey.client() as client:
        client.flushall()
    place = Place(tmp_path, durable=bouncer.dsn(postgres.migrated_database()), live=valkey.url())
    with replica(place.write("a"), "--workers", "2") as process:
        clients = [process.client(timeout=10) for _ in range(8)]
        await clients[0].report_capacity("c", [quota("claude", 50)])
        for batch in range(20):
            answers = await asyncio.gather(*(clients[n % 8].admit(ROUTE, f"worker {batch} {n}", 10) for n in range(50)))
            assert {answer.response.binding.candidate for answer in answers} == {"claude/sonnet"}
        for client in clients:
            await client.close()
        log = process.log.read_text()
        assert "prepared statement" not in log
        assert "SQLSTATE" not in log


async def test_case_33_four_processes_write_at_once_and_nobody_waits_long(tmp_path: Path) -> None:
    place = Place.shared(tmp_path)
    with replica(place.write("a"), "--workers", "4") as process:
        clients = [process.client(timeout=10) for _ in range(16)]
        await clients[0].report_capacity("c", [quota("claude", 50)])
        await asyncio.sleep(0.1)
        waits = []

        async def one(number: int) -> None:
            begun = time.monotonic()
            answer = await clients[number % 16].admit(ROUTE, f"w{number // 2}", 10)
            waits.append(time.monotonic() - begun)
            assert answer.response.binding.candidate == "claude/sonnet"

        for start in range(0, 1000, 50):
            await asyncio.gather(*(one(start + n) for n in range(50)))
        assert sorted(waits)[989] < 1.0
        for client in clients:
            await client.close()
