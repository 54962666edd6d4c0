"""Every store of pins against the one suite."""

from pathlib import Path
from typing import ClassVar

from tidegate_server.ports import PinStore
from tidegate_server.stores.memory_pins import MemoryPinStore

from tests.contract.pin_store_contract import PinStoreContract
from tests.integration.pins.places import database, open_pins


class MemoryBackend:
    durable: ClassVar = False

    def __init__(self, directory: Path) -> None:
        pass

    async def open(self) -> PinStore:
        return MemoryPinStore()

    async def corrupt(self, store: PinStore, pin_id: bytes) -> None:
        assert isinstance(store, MemoryPinStore)
        store.corrupt(pin_id)

    async def audit(self, store: PinStore) -> list[tuple[bytes, str, int, str]]:
        assert isinstance(store, MemoryPinStore)
        return [(line.pin_id, line.who, line.when, line.why) for line in store.audit]


class SqliteBackend:
    durable: ClassVar = True

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "state"

    async def open(self) -> PinStore:
        return await open_pins(self._directory)

    async def corrupt(self, store: PinStore, pin_id: bytes) -> None:
        with database(self._directory) as connection:
            connection.execute("UPDATE pin SET record = CAST(x'ff' || record AS BLOB) WHERE pin_id = ?", (pin_id,))

    async def audit(self, store: PinStore) -> list[tuple[bytes, str, int, str]]:
        with database(self._directory) as connection:
            return list(connection.execute("SELECT pin_id, who, at, why FROM audit ORDER BY line"))


class TestMemoryPins(PinStoreContract):
    backend = MemoryBackend


class TestSqlitePins(PinStoreContract):
    backend = SqliteBackend
