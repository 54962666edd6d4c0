"""A thousand pins and a million: what a pinned worker's look-up costs, and what a start costs (§14 of the contract).

Run by `python -m tests.bench.pins`, within two minutes. Prints ratios; absolute numbers belong to the machine.
"""

import asyncio
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegate_server.core.model import Pin
from tidegate_server.core.pins import PinCodec
from tidegate_server.stores.owned_files import OwnedDirectory
from tidegate_server.stores.pin_cache import PinCache
from tidegate_server.stores.pin_rows import SQL
from tidegate_server.stores.sqlite_home import SqliteHome
from tidegate_server.stores.sqlite_pins import DIRECTORY, SCHEMA, SqlitePinStore

from tests.contract.pin_samples import make_pin
from tests.integration.pins.places import KEY, open_pins

SMALL, LARGE = 1_000, 1_000_000
HOT = 1_000
COLD = 100_000
CODEC = PinCodec(KEY)
NAMES = ("default", "", "managed/routine")


class Measured(NamedTuple):
    """Seconds to open; microseconds of one hot look-up by `peek` and by `get`, and of one cold read."""

    start: float
    peek: float
    get: float
    cold: float


def pins(count: int) -> Iterable[Pin]:
    """So many pins of workers "0", "1", …"""
    sample = make_pin("sample")
    for n in range(count):
        yield sample._replace(pin_id=CODEC.pin_id(*NAMES, str(n)))


def build(state: Path, count: int) -> None:
    """Store them past the queues, in the order of their ids: only what is there afterwards matters here."""
    directory = OwnedDirectory.open(state)
    home, connection = SqliteHome.open(directory, DIRECTORY, SCHEMA, key_check=CODEC.check_value)
    rows = sorted((pin.pin_id, *CODEC.seal(pin)) for pin in pins(count))
    while batch := rows[:50_000]:
        del rows[:50_000]

        def store(_: object, batch: list[tuple[bytes, bytes, bytes]] = batch) -> None:
            named = [dict(zip(("pin_id", "record", "checksum"), row, strict=True)) for row in batch]
            connection.executemany(SQL["insert"], named)
            connection.executemany(SQL["insert_witness"], [{"pin_id": row[0]} for row in batch])

        home.commit(connection, [store])
        home.checkpoint(connection)
    home.close(connection)
    directory.close()


def microseconds(work: Callable[[], object], times: int) -> float:
    """One of `times`, at best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best / times * 1e6


async def measure(state: Path, count: int) -> Measured:
    """All of it for one store."""
    start = time.perf_counter()
    store = await open_pins(state)
    assert store.healthy()
    ready = time.perf_counter() - start
    workers = [str(n) for n in range(0, count, count // HOT)]

    def peek_all() -> None:
        for worker in workers:
            assert store.peek(CODEC.pin_id(*NAMES, worker)) is not None

    for worker in workers:
        await store.get(CODEC.pin_id(*NAMES, worker))
    peek = microseconds(peek_all, len(workers))
    get = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for worker in workers:
            await store.get(CODEC.pin_id(*NAMES, worker))
        get = min(get, (time.perf_counter() - start) / len(workers) * 1e6)
    cold = await measure_cold(store, count)
    await store.close()
    return Measured(ready, peek, get, cold)


async def measure_cold(store: SqlitePinStore, count: int) -> float:
    """Microseconds of a read that is not cached, with 100 at once."""
    asked = iter(range(1, count, max(1, count // COLD)))
    start, read = time.perf_counter(), 0
    while some := list(islice(asked, 100)):
        await asyncio.gather(*(store.get(CODEC.pin_id(*NAMES, str(n))) for n in some))
        read += len(some)
    return (time.perf_counter() - start) / read * 1e6


def measure_memory(count: int) -> float:
    """Bytes that a pin takes in a full cache, its share of the tables included."""
    rows = [(pin.pin_id, *CODEC.seal(pin)) for pin in pins(count)]
    cache = PinCache(2 * count)
    tracemalloc.start()
    for pin_id, record, checksum in rows:
        pin = CODEC.open(bytes(bytearray(pin_id)), record, checksum)  # an id of its own, as a store reads one
        assert isinstance(pin, Pin)
        cache.put(pin)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / count


async def measure_creates(state: Path, at_once: int, count: int) -> float:
    """New pins a second, durable each."""
    store = await open_pins(state)
    fresh = [make_pin(f"{at_once} {n}") for n in range(count)]
    start = time.perf_counter()
    while fresh:
        some, fresh = fresh[:at_once], fresh[at_once:]
        await asyncio.gather(*(store.create(pin) for pin in some))
    spent = time.perf_counter() - start
    await store.close()
    return count / spent


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        small_state, large_state = Path(place) / "small", Path(place) / "large"
        build(small_state, SMALL)
        build(large_state, LARGE)
        small, large = await measure(small_state, SMALL), await measure(large_state, LARGE)
        alone, together = [await measure_creates(small_state, n, count) for n, count in ((1, 300), (512, 10_000))]
    memory = measure_memory(COLD)
    print(f"hot look-up, peek, 10^6 : 10^3 pins   {large.peek / small.peek:5.2f}   ({large.peek:.2f} µs)")
    print(f"hot look-up, get,  10^6 : 10^3 pins   {large.get / small.get:5.2f}   ({large.get:.2f} µs)")
    print(f"cold read of 10^6 : hot peek          {large.cold / large.peek:5.1f}   ({large.cold:.0f} µs, 100 at once)")
    print(f"start with 10^6 : allowed second      {large.start:5.3f}   (with 10^3: {small.start:.3f} s)")
    print(f"new pins/s, 512 at once : one by one  {together / alone:5.1f}   ({together:.0f} : {alone:.0f})")
    print(f"memory of a cached pin                {memory:5.0f} bytes")


if __name__ == "__main__":
    asyncio.run(main())
