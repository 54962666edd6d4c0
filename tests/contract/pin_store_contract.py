"""What every store of pins must do, whatever it is made of. A store joins with a backend and two lines:

class TestMyPins(PinStoreContract):
    backend = MyBackend
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
from tidegate_server.core.model import CorruptPin, Pin, Tier
from tidegate_server.ports import PinFilter, PinStore

from tests.contract.pin_samples import make_pin

WHO, WHEN, WHY = "ops@example.org", 1_800_000_000_000_000_000, "account closed"
EVERYTHING = PinFilter()


class Backend(Protocol):
    """One kind of store, with an empty place of its own."""

    def __init__(self, directory: Path) -> None: ...

    async def open(self) -> PinStore:
        """The store of this place; durable ones find what was stored before."""
        ...

    async def reopen(self, store: PinStore) -> PinStore:
        """As `open` after `close`, where that loses nothing; else the same store."""
        ...

    async def corrupt(self, store: PinStore, pin_id: bytes) -> None:
        """Change a bit in the stored value of that pin, behind the store's back."""
        ...

    async def audit(self, store: PinStore) -> list[tuple[bytes, str, int, str]]:
        """The audit lines in the order of writing: pin, who, when, why."""
        ...


async def read_all(store: PinStore, which: PinFilter, limit: int) -> list[Pin | CorruptPin]:
    """Every page, one after the other."""
    found: list[Pin | CorruptPin] = []
    after = b""
    while True:
        page = await store.list(which, after=after, limit=limit)
        assert len(page.pins) <= limit
        found += page.pins
        if not page.next_after:
            return found
        assert page.next_after > after
        after = page.next_after


class PinStoreContract:
    """The suite. `backend` is the kind of store under test."""

    backend: type[Backend]

    @pytest.fixture
    def place(self, tmp_path: Path) -> Backend:
        return self.backend(tmp_path)

    @pytest.fixture
    async def store(self, place: Backend) -> AsyncIterator[PinStore]:
        store = await place.open()
        yield store
        await store.close()

    async def test_what_was_never_stored_is_not_there(self, store: PinStore) -> None:
        assert await store.get(make_pin("a").pin_id) is None
        assert store.peek(make_pin("a").pin_id) is None
        assert store.healthy()
        assert list(store.warnings()) == []

    async def test_a_stored_pin_is_read_back_whole(self, store: PinStore) -> None:
        pin = make_pin("a", candidate="codex/gpt-6.1-sol", namespace="Ünïcode 漢字")
        assert await store.create(pin) == (pin, True)
        assert await store.get(pin.pin_id) == pin
        assert store.peek(pin.pin_id) == pin

    async def test_the_first_writer_wins(self, store: PinStore) -> None:
        first, second = make_pin("a"), make_pin("a", candidate="codex/gpt-6.1-sol")
        await store.create(first)
        assert await store.create(second) == (first, False)
        assert await store.create(first) == (first, False)
        assert await store.get(first.pin_id) == first

    async def test_of_200_at_once_one_wins_and_everybody_learns_which(self, store: PinStore) -> None:
        pins = [make_pin("a", candidate=f"{('claude', 'codex')[n % 2]}/m") for n in range(200)]
        answers = await asyncio.gather(*(store.create(pin) for pin in pins))
        assert len({stored for stored, _ in answers}) == 1
        assert sum(created for _, created in answers) == 1
        assert answers[0][0] == await store.get(pins[0].pin_id)

    async def test_ids_are_told_apart_byte_for_byte(self, store: PinStore) -> None:
        names = ["W1", "w1", "w1 ", "e\u0301", "\u00e9", "a\0b", "a"]
        for name in names:
            assert (await store.create(make_pin(name, candidate=f"codex/{len(name)}")))[1], name
        assert len(await read_all(store, EVERYTHING, 100)) == len(names)

    async def test_a_cancelled_create_leaves_a_whole_pin_or_none(self, store: PinStore) -> None:
        pins = [make_pin(str(n)) for n in range(50)]
        tasks = [asyncio.ensure_future(store.create(pin)) for pin in pins]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pin in pins:
            assert await store.get(pin.pin_id) in (None, pin)
            assert (await store.create(pin))[0] == pin
        assert await store.verify() == (50, ())

    async def test_retirement_shows_at_once_in_every_reading(self, store: PinStore) -> None:
        pin = make_pin("a")
        await store.create(pin)
        assert await store.retire(PinFilter(pin_id=pin.pin_id), who=WHO, when=WHEN, why=WHY, dry_run=False) == 1
        retired = pin._replace(retired=True)
        assert store.peek(pin.pin_id) in (None, retired)
        assert await store.get(pin.pin_id) == retired
        assert await store.create(pin) == (retired, False)
        assert await read_all(store, EVERYTHING, 10) == [retired]

    async def test_each_retirement_leaves_one_audit_line(self, place: Backend, store: PinStore) -> None:
        pins = [make_pin(str(n)) for n in range(5)]
        for pin in pins:
            await store.create(pin)
        for _ in range(2):  # the second time there is nothing left to retire
            await store.retire(EVERYTHING, who=WHO, when=WHEN, why=WHY, dry_run=False)
        lines = await place.audit(store)
        assert sorted(line[0] for line in lines) == sorted(pin.pin_id for pin in pins)
        assert {line[1:] for line in lines} == {(WHO, WHEN, WHY)}

    async def test_a_dry_run_counts_and_changes_nothing(self, place: Backend, store: PinStore) -> None:
        await store.create(make_pin("a"))
        assert await store.retire(EVERYTHING, who=WHO, when=WHEN, why=WHY, dry_run=True) == 1
        assert await store.get(make_pin("a").pin_id) == make_pin("a")
        assert await place.audit(store) == []

    @pytest.mark.parametrize(
        ("which", "names"),
        [
            (PinFilter(), "abcd"),
            (PinFilter(namespace="team-a"), "d"),
            (PinFilter(route="managed/strong"), "c"),
            (PinFilter(provider="codex"), "bd"),
            (PinFilter(provider="codex", namespace="default"), "b"),
            (PinFilter(pin_id=make_pin("b").pin_id), "b"),
            (PinFilter(pin_id=make_pin("b").pin_id, provider="claude-primary"), ""),
            (PinFilter(pin_id=make_pin("z").pin_id), ""),
            (PinFilter(provider="cod"), ""),
        ],
    )
    @pytest.mark.parametrize("limit", [1, 3, 100])
    async def test_filters_and_pages(self, store: PinStore, which: PinFilter, names: str, limit: int) -> None:
        pins = {
            "a": make_pin("a"),
            "b": make_pin("b", candidate="codex/gpt-6.1-sol"),
            "c": make_pin("c", route="managed/strong"),
            "d": make_pin("d", candidate="codex/gpt-6.1-sol", namespace="team-a"),
        }
        for pin in pins.values():
            await store.create(pin)
        expected = sorted((pins[name] for name in names), key=lambda pin: pin.pin_id)
        assert await read_all(store, which, limit) == expected
        assert await store.retire(which, who=WHO, when=WHEN, why=WHY, dry_run=True) == len(names)
        assert await store.retire(which, who=WHO, when=WHEN, why=WHY, dry_run=False) == len(names)
        for name, pin in pins.items():
            assert await store.get(pin.pin_id) == pin._replace(retired=name in names)

    async def test_many_pins_in_one_bulk(self, store: PinStore) -> None:
        pins = [make_pin(str(n), candidate=f"{('claude', 'codex')[n % 2]}/m") for n in range(1500)]
        await asyncio.gather(*(store.create(pin) for pin in pins))
        assert {pin.pin_id for pin in await read_all(store, EVERYTHING, 100)} == {pin.pin_id for pin in pins}
        assert await store.retire(PinFilter(provider="codex"), who=WHO, when=WHEN, why=WHY, dry_run=False) == 750
        assert sum((await store.fingerprints()).values()) == 750
        assert await store.verify() == (1500, ())

    async def test_fingerprints_count_what_is_not_retired(self, store: PinStore) -> None:
        kept = [make_pin("a"), make_pin("b"), make_pin("c", policy="q" * 64)]
        gone = make_pin("d")
        for pin in (*kept, gone):
            await store.create(pin)
        await store.retire(PinFilter(pin_id=gone.pin_id), who=WHO, when=WHEN, why=WHY, dry_run=False)
        binding = (kept[0].route, kept[0].candidate)
        assert await store.fingerprints() == {
            (*binding, "p" * 64, kept[0].binding_fingerprint): 2,
            (*binding, "q" * 64, kept[0].binding_fingerprint): 1,
        }

    async def test_a_corrupt_pin_is_never_none_and_never_new(self, place: Backend) -> None:
        hurt, well = make_pin("hurt"), make_pin("well")
        store = await place.open()
        await store.create(hurt)
        await store.create(well)
        await place.corrupt(store, hurt.pin_id)
        store = await place.reopen(store)  # nothing is cached any more
        corrupt = CorruptPin(hurt.pin_id)
        assert store.peek(hurt.pin_id) is None
        assert await store.get(hurt.pin_id) == corrupt
        assert await store.create(hurt) == (corrupt, False)
        assert await store.get(well.pin_id) == well
        assert await store.verify() == (2, (hurt.pin_id,))
        assert any(hurt.pin_id.hex() in warning for warning in store.warnings())
        assert await read_all(store, PinFilter(pin_id=hurt.pin_id), 10) == [corrupt]
        assert await read_all(store, PinFilter(provider=hurt.provider), 10) == [well]
        assert await store.retire(EVERYTHING, who=WHO, when=WHEN, why=WHY, dry_run=False) == 1
        assert await store.get(hurt.pin_id) == corrupt
        assert store.healthy()
        await store.close()


class DurablePinStoreContract(PinStoreContract):
    """The suite of stores whose pins outlive the process."""

    @pytest.mark.parametrize("create_time", [-(1 << 63), -1, 0, (1 << 63) - 1])
    @pytest.mark.parametrize("tier", list(Tier))
    async def test_every_tier_and_time_survives(self, place: Backend, tier: Tier, create_time: int) -> None:
        pin = make_pin("a")._replace(tier=tier, create_time=create_time)
        store = await place.open()
        await store.create(pin)
        await store.close()
        store = await place.open()
        assert await store.get(pin.pin_id) == pin
        await store.close()

    async def test_what_was_stored_outlives_the_process(self, place: Backend) -> None:
        store = await place.open()
        pins = [make_pin(str(n)) for n in range(3)]
        for pin in pins:
            await store.create(pin)
        await store.retire(PinFilter(pin_id=pins[0].pin_id), who=WHO, when=WHEN, why=WHY, dry_run=False)
        await store.close()
        store = await place.open()
        assert [await store.get(pin.pin_id) for pin in pins] == [pins[0]._replace(retired=True), *pins[1:]]
        assert not (await store.create(pins[1]._replace(candidate="codex/other")))[1]
        await store.close()
