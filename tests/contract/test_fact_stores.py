"""Every store of facts against the one suite."""

from pathlib import Path

from tidegate_server.core.model import Instant
from tidegate_server.ports import FactStore
from tidegate_server.stores.memory_facts import MemoryFactStore
from tidegate_server.wiring.clock import SystemClock

from tests.contract.fact_store_contract import FactStoreContract
from tests.support.servers import needs_redis
from tests.support.shared_stores import RedisFactBackend, ValkeyFactBackend


class MemoryBackend:
    def __init__(self, directory: Path) -> None:
        self._clock = SystemClock()

    async def open(self) -> FactStore:
        return MemoryFactStore(self._clock)

    async def close(self, store: FactStore) -> None:
        pass

    def now(self) -> Instant:
        return self._clock.monotonic()


class TestMemory(FactStoreContract):
    backend = MemoryBackend


@needs_redis
class TestRedis(FactStoreContract):
    backend = RedisFactBackend


class TestValkey(FactStoreContract):
    backend = ValkeyFactBackend
