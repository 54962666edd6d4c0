"""Every store of pins against the one suite."""

from pathlib import Path

from tidegate_server.ports import PinStore
from tidegate_server.stores.memory_pins import MemoryPinStore

from tests.contract.pin_store_contract import DurablePinStoreContract, PinStoreContract
from tests.integration.pins.places import database, open_pins
from tests.support.shared_stores import PostgresPinBackend


class MemoryBackend:
    def __init__(self, directory: Path) -> None:
        pass

    async def open(self) -> PinStore:
        return MemoryPinStore()

    async def reopen(self, store: PinStore) -> PinStore:
        return store

    async def corrupt(self, store: PinStore, pin_id: bytes) -> None:
        assert isinstance(store, MemoryPinStore)
        store.corrupt(pin_id)

    async def audit(self, store: PinStore) -> list[tuple[bytes, str, int, str]]:
        assert isinstance(store, MemoryPinStore)
        return [(line.pin_id, line.who, line.when, line.why) for line in store.audit]


class SqliteBackend:
    def __init__(self, directory: Path) -> None:
        self._directory = directory / "state"

    async def open(self) -> PinStore:
        return await open_pins(self._directory)

    async def reopen(self, store: PinStore) -> PinStore:
        await store.close()
        return await self.open()

    async def corrupt(self, store: PinStore, pin_id: bytes) -> None:
        with database(self._directory) as connection:
            connection.execute("UPDATE pin SET record = CAST(x'ff' || record AS BLOB) WHERE pin_id = ?", (pin_id,))

    async def audit(self, store: PinStore) -> list[tuple[bytes, str, int, str]]:
        with database(self._directory) as connection:
            return list(connection.execute("SELECT pin_id, who, at, why FROM audit ORDER BY line"))


class TestMemoryPins(PinStoreContract):
    backend = MemoryBackend


class TestSqlitePins(DurablePinStoreContract):
    backend = SqliteBackend


class TestPostgresPins(DurablePinStoreContract):
    backend = PostgresPinBackend
