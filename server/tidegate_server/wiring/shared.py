"""The shared mode's stores: PostgreSQL for what must last, Valkey or Redis for what is live (§12 of the contract).

Imported only where a configuration names these stores: their drivers come with the extras `postgres` and `valkey`.
"""

from contextlib import AsyncExitStack

from tidegate_server.config import Configuration
from tidegate_server.core.pins import PinCodec
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.ports import Clock
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.postgres.agents import PostgresAgentStore
from tidegate_server.stores.postgres.database import open_database
from tidegate_server.stores.postgres.decisions import PostgresDecisionStore
from tidegate_server.stores.postgres.pins import PostgresPinStore
from tidegate_server.stores.valkey.facts import FACTS, ValkeyFactStore
from tidegate_server.stores.valkey.flows import FLOWS, ValkeyFlowStore
from tidegate_server.stores.valkey.link import Link
from tidegate_server.stores.valkey.peers import ValkeyPeers
from tidegate_server.wiring.application import Stores


async def open_shared(
    configuration: Configuration, limits: FreshnessLimits, pin_key: bytes, clock: Clock, stack: AsyncExitStack
) -> Stores:
    """The stores, whether or not they can be reached now: what cannot be is unhealthy until it can.

    Raises UnsafeState for one that must not be used: another key, a schema of another version, a server that may evict.
    """
    assert configuration.stores is not None, "the shared mode is what names its stores"
    database = await open_database(
        configuration.stores.durable.get_secret_value(), PinCodec(pin_key).check_value, clock
    )
    stack.push_async_callback(database.close)
    pins = await PostgresPinStore.open(database, pin_key, clock)
    stack.push_async_callback(pins.close)

    url = configuration.stores.live.get_secret_value()
    # Two links, so that a large batch of facts is never in the way of a hop.
    of_facts, of_flows = Link(url, [FACTS], clock), Link(url, [FLOWS], clock)
    for link in (of_facts, of_flows):
        stack.push_async_callback(link.close)
        await link.open()
    facts = await ValkeyFactStore.open(of_facts, url, clock, limits)
    stack.push_async_callback(facts.close)
    flows = GuardedFlowStore(await ValkeyFlowStore.open(of_flows, url, clock), clock)
    stack.push_async_callback(flows.close)
    peers = ValkeyPeers(of_facts, url, clock)
    stack.push_async_callback(peers.close)
    return Stores(
        pins,
        facts,
        flows,
        PostgresAgentStore(database),
        PostgresDecisionStore(database),
        peers,
        lambda: of_facts.warnings() or of_flows.warnings(),
    )
