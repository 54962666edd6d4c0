"""The shared mode's stores on the test servers, each in an empty place of its own: for the contract suites."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

from tidegate_server.core.model import Instant, Nanos
from tidegate_server.core.pins import PinCodec
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.ports import FactStore, FlowStore, PinStore
from tidegate_server.stores.postgres.database import CALL_SECONDS, GuardedDatabase, open_database
from tidegate_server.stores.postgres.pins import PostgresPinStore
from tidegate_server.stores.valkey.facts import FACTS, ValkeyFactStore
from tidegate_server.stores.valkey.flows import FLOWS, ValkeyFlowStore
from tidegate_server.stores.valkey.link import ANSWER_SECONDS, Link
from tidegate_server.wiring.clock import SystemClock

from tests.support import servers

KEY = bytes(range(100, 164))


PATIENT = 20.0
"""Seconds for a call where a suite is about what is answered and not about how soon: test machines are busy."""


async def open_durable(
    dsn: str, key: bytes = KEY, *, size: int = 4, call_seconds: float = CALL_SECONDS
) -> GuardedDatabase:
    """That database, under the tests' key."""
    return await open_database(dsn, PinCodec(key).check_value, SystemClock(), size=size, call_seconds=call_seconds)


@contextlib.asynccontextmanager
async def shared_database() -> AsyncIterator[GuardedDatabase]:
    """An empty database on the shared server."""
    server = servers.postgres()
    database = await open_durable(server.dsn(server.migrated_database()), call_seconds=PATIENT)
    yield database
    await database.close()


class OwningPins(PostgresPinStore):
    """The store and its database, closed together."""

    async def close(self) -> None:
        await super().close()
        await self._database.close()


async def open_pins(dsn: str, key: bytes = KEY, *, size: int = 4, call_seconds: float = CALL_SECONDS) -> OwningPins:
    """The pins of that database."""
    database = await open_durable(dsn, key, size=size, call_seconds=call_seconds)
    return await OwningPins.open(database, key, SystemClock())


class PostgresPinBackend:
    """A database of its own on the shared server."""

    def __init__(self, directory: Path) -> None:
        del directory
        self._server = servers.postgres()
        self._database = self._server.migrated_database()

    async def open(self) -> PinStore:
        return await open_pins(self._server.dsn(self._database), call_seconds=PATIENT)

    async def reopen(self, store: PinStore) -> PinStore:
        await store.close()
        return await self.open()

    async def corrupt(self, store: PinStore, pin_id: bytes) -> None:
        self._server.execute(
            f"UPDATE tidegate_pin SET record = '\\xff'::bytea || record WHERE pin_id = '\\x{pin_id.hex()}'",
            self._database,
        )

    async def audit(self, store: PinStore) -> list[tuple[bytes, str, int, str]]:
        lines = self._server.execute(
            "SELECT pin_id, who, at, why FROM tidegate_pin_audit ORDER BY line", self._database
        )
        return [(pin_id, who, at, why) for pin_id, who, at, why in lines]  # type: ignore[misc]  # as the table has them


class OwningFlows(ValkeyFlowStore):
    """The store and its link, closed together."""

    async def close(self) -> None:
        await super().close()
        await self._link.close()


class ValkeyFlowBackend:
    """The shared server, emptied. Time passes only when it is told to."""

    durable: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        del directory
        self._server = self._of()
        with self._server.client() as client:
            client.flushall()
        self._now = time.time_ns()

    async def open(self) -> FlowStore:
        clock = SystemClock()
        link = Link(self._server.url(), [FLOWS], clock, answer_seconds=PATIENT)
        await link.open()
        return OwningFlows(link, self._server.url(), clock, now=lambda: self._now)

    async def advance(self, length: Nanos) -> None:
        self._now += length

    def _of(self) -> servers.Valkey:
        return servers.valkey()


async def open_facts(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> ValkeyFactStore:
    """A replica's copy of the facts of that server, with a link of its own."""
    clock = SystemClock()
    link = Link(url, [FACTS], clock, answer_seconds=answer_seconds)
    await link.open()
    return await ValkeyFactStore.open(link, url, clock, FreshnessLimits())


async def close_facts(store: FactStore) -> None:
    """Close the copy and its link."""
    assert isinstance(store, ValkeyFactStore)
    await store.close()
    await store._link.close()


class ValkeyFactBackend:
    """The shared server, emptied."""

    def __init__(self, directory: Path) -> None:
        del directory
        self._server = self._of()
        with self._server.client() as client:
            client.flushall()

    async def open(self) -> FactStore:
        return await open_facts(self._server.url(), answer_seconds=PATIENT)

    async def close(self, store: FactStore) -> None:
        await close_facts(store)

    def now(self) -> Instant:
        return SystemClock().monotonic()

    def _of(self) -> servers.Valkey:
        return servers.valkey()


class RedisFactBackend(ValkeyFactBackend):
    """The same on Redis."""

    def _of(self) -> servers.Valkey:
        return servers.redis_server()


class RedisFlowBackend(ValkeyFlowBackend):
    """The same on Redis."""

    def _of(self) -> servers.Valkey:
        return servers.redis_server()
