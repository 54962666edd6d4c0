"""What every store of facts must do, whatever it is made of. A store joins with a backend and two lines:

class TestMyFacts(FactStoreContract):
    backend = MyBackend

Captured, stale and ended are instants of the process's own clock; a shared store may make a fact older by what it takes
to ask its server for the time, and never younger.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Protocol

import pytest
from tidegate_server.core.freshness import is_fresh
from tidegate_server.core.model import (
    NEVER,
    SECOND,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    Fact,
    Health,
    HealthState,
    Instant,
    Nanos,
    ObservationResult,
    Quota,
    Value,
)
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.ports import FactFilter, FactStore
from tidegate_server.testing import fact

ACCEPTED, SUPERSEDED = ObservationResult.ACCEPTED, ObservationResult.SUPERSEDED
TOLERANCE: Nanos = SECOND // 20
AVAILABLE = Availability(AvailabilityState.AVAILABLE)
ALL: frozenset[str] = frozenset()


class Backend(Protocol):
    """One kind of store, with an empty place of its own."""

    def __init__(self, directory: Path) -> None: ...

    async def open(self) -> FactStore:
        """A store of this place."""
        ...

    async def close(self, store: FactStore) -> None:
        """Let it go."""
        ...

    def now(self) -> Instant:
        """The clock that the facts are made by."""
        ...


def blocked(blocker: Blocker) -> Availability:
    return Availability(AvailabilityState.BLOCKED, blocker)


def is_same(stored: Fact, put: Fact) -> bool:
    """The same in all but the clocks' tolerance, in which it may only have become older."""
    times = ((stored.captured, put.captured), (stored.stale_at, put.stale_at), (stored.ends_at, put.ends_at))
    within = all(now == then or -TOLERANCE <= now - then <= 2_000 for now, then in times)
    return within and stored._replace(captured=0, stale_at=0, ends_at=0) == put._replace(
        captured=0, stale_at=0, ends_at=0
    )


class FactStoreContract:
    """The suite. `backend` is the kind of store under test."""

    backend: type[Backend]

    @pytest.fixture
    def place(self, tmp_path: Path) -> Backend:
        return self.backend(tmp_path)

    @pytest.fixture
    async def store(self, place: Backend) -> AsyncIterator[FactStore]:
        store = await place.open()
        yield store
        await place.close(store)

    async def test_an_empty_store_is_whole(self, store: FactStore) -> None:
        assert store.healthy()
        assert dict(store.groups()) == {}
        assert list(store.facts(ALL)) == []
        assert list(await store.put([])) == []

    @pytest.mark.parametrize(
        "value",
        [
            Health(HealthState.HEALTHY, 1, 2, 0.1),
            Health(HealthState.UNKNOWN),
            Quota("5h", 0.1 + 0.2),
            Quota("7d", unlimited=True, scope="premium"),
            Balance("USD", Decimal("0.000000000000000000001"), available=True),
            Balance("", unlimited=True, available=False, scope="Ünïcode 漢字"),
            AVAILABLE,
            Availability(AvailabilityState.AVAILABLE, Blocker.AUTH_FAILED),
            Availability(AvailabilityState.UNKNOWN, Blocker.RATE_LIMITED),
            blocked(Blocker.QUOTA_EXHAUSTED),
        ],
    )
    async def test_a_fact_comes_back_whole(self, store: FactStore, place: Backend, value: Value) -> None:
        put = fact("p", "m/ö", value, now=place.now(), age=SECOND, ends_in=9 * SECOND, ttl=3 * SECOND, sequence=7)
        put = put._replace(observe_time=1_792_497_600 * SECOND + 1, end_time=1, collector="c", identity="i")
        assert await store.put([put]) == [ACCEPTED]
        (stored,) = store.facts(ALL)
        assert is_same(stored, put)
        assert store.groups()["p", "m/ö"].all == (stored,)

    async def test_one_without_an_end_has_none(self, store: FactStore, place: Backend) -> None:
        await store.put([fact("p", "", Quota("5h", 1), now=place.now())])
        assert store.facts(ALL)[0].ends_at == NEVER

    @pytest.mark.parametrize("sequence", [-(1 << 63), -1, 0, 1 << 53, (1 << 63) - 1])
    async def test_sequences_are_exact(self, store: FactStore, place: Backend, sequence: int) -> None:
        put = fact("p", "", Quota("5h", 1), now=place.now(), sequence=sequence)._replace(observe_time=5)
        await store.put([put])
        assert await store.put([put]) == [SUPERSEDED]
        if sequence < (1 << 63) - 1:
            assert await store.put([put._replace(sequence=sequence + 1)]) == [ACCEPTED]
        assert await store.put([put]) == [SUPERSEDED]

    async def test_the_newest_capture_wins(self, store: FactStore, place: Backend) -> None:
        now = place.now()
        old = fact("p", "", Quota("5h", 10), now=now, age=9 * SECOND)
        new = fact("p", "", Quota("5h", 20), now=now, age=SECOND)
        assert await store.put([new]) == [ACCEPTED]
        assert await store.put([old]) == [SUPERSEDED]
        assert is_same(store.facts(ALL)[0], new)

    async def test_a_late_one_touches_no_other_window_scope_or_model(self, store: FactStore, place: Backend) -> None:
        now = place.now()
        kept = [
            fact("p", "", Quota("7d", 1), now=now),
            fact("p", "", Quota("5h", 1, scope="s"), now=now),
            fact("p", "m", Quota("5h", 1), now=now),
            fact("p", "", Quota("5h", 1), now=now),
        ]
        await store.put(kept)
        assert await store.put([fact("p", "", Quota("5h", 99), now=now, age=SECOND)]) == [SUPERSEDED]
        assert {f.value.remaining_percent for f in store.facts(ALL) if isinstance(f.value, Quota)} == {1.0}
        assert len(store.facts(ALL)) == 4

    async def test_a_sample_sent_again_gets_no_younger(self, store: FactStore, place: Backend) -> None:
        first = fact("p", "", Quota("5h", 10), now=place.now(), age=5 * SECOND, sequence=1, collector="c")
        first = first._replace(observe_time=1_000)
        again = first._replace(captured=first.captured + 4 * SECOND, stale_at=first.stale_at + 4 * SECOND, sequence=2)
        await store.put([first])
        assert await store.put([again]) == [ACCEPTED]
        assert is_same(store.facts(ALL)[0], first._replace(sequence=2))

    async def test_available_clears_older_rows_of_its_own_provider_and_model(
        self, store: FactStore, place: Backend
    ) -> None:
        now = place.now()
        kinds = [kind for kind in Blocker if 1 <= kind <= 6]
        await store.put([fact("p", "m", blocked(kind), now=now, age=2 * SECOND) for kind in kinds])
        unknown = Availability(AvailabilityState.UNKNOWN, Blocker.PROVIDER_DOWN)
        await store.put([fact("p", "m", unknown, now=now, age=3 * SECOND // 2)])
        await store.put([fact("p", "", blocked(Blocker.AUTH_FAILED), now=now, age=2 * SECOND)])
        assert await store.put([fact("p", "m", AVAILABLE, now=now, age=SECOND)]) == [ACCEPTED]
        left = {f.value.blocker for f in store.groups()["p", "m"].rows if isinstance(f.value, Availability)}
        assert left == {Blocker.QUOTA_EXHAUSTED, Blocker.ACCOUNT_DISABLED}
        assert len(store.groups()["p", ""].rows) == 1

    async def test_a_row_older_than_available_does_not_come_back(self, store: FactStore, place: Backend) -> None:
        now = place.now()
        await store.put([fact("p", "m", AVAILABLE, now=now, age=SECOND)])
        late = fact("p", "m", blocked(Blocker.AUTH_FAILED), now=now, age=2 * SECOND)
        newer = fact("p", "m", blocked(Blocker.AUTH_FAILED), now=now)
        other = fact("p", "m", blocked(Blocker.ACCOUNT_DISABLED), now=now, age=2 * SECOND)
        assert await store.put([late, other, newer]) == [SUPERSEDED, ACCEPTED, ACCEPTED]

    async def test_an_exhaustion_that_a_number_refuted_goes_with_the_number(
        self, store: FactStore, place: Backend
    ) -> None:
        now = place.now()
        row = fact("p", "", blocked(Blocker.QUOTA_EXHAUSTED), now=now, age=9 * SECOND, collector="c")
        later = fact("p", "m", blocked(Blocker.QUOTA_EXHAUSTED), now=now, age=SECOND, collector="c")
        room = [fact("p", m, Quota("5h", 50), now=now, age=5 * SECOND, collector="c") for m in ("", "m")]
        await store.put([row, later, *room])
        await store.put([], FactFilter("", "c", window="5h"))
        assert "" not in {f.key.model for f in store.facts(ALL)}, "nothing is left of the account"
        assert [f.key.kind for f in store.facts(ALL)] == ["availability"], "a newer row was never refuted"

    @pytest.mark.parametrize(
        ("which", "left"),
        [
            (FactFilter("i", "c"), ["x"]),
            (FactFilter("i", "c", frozenset({"p"})), ["q", "x"]),
            (FactFilter("i", "c", window="5h"), ["p7", "ps", "q", "x"]),
            (FactFilter("i", "c", scope="s"), ["p5", "p7", "q", "x"]),
            (FactFilter("i", "c", scope="model:m"), ["p5", "p7", "ps", "x"]),
            (FactFilter("i", "other"), ["p5", "p7", "ps", "q", "x"]),
        ],
    )
    async def test_a_collector_takes_back_its_own(
        self, store: FactStore, place: Backend, which: FactFilter, left: list[str]
    ) -> None:
        now = place.now()
        own = {
            "p5": fact("p", "", Quota("5h", 1), now=now),
            "p7": fact("p", "", Quota("7d", 1), now=now),
            "ps": fact("p", "", Quota("1mo", 1, scope="s"), now=now),
            "q": fact("q", "m", Quota("1d", 1), now=now),
        }
        facts = {name: f._replace(collector="c", identity="i") for name, f in own.items()}
        facts["x"] = fact("x", "", Quota("5h", 1), now=now)._replace(collector="c", identity="somebody")
        await store.put(list(facts.values()))
        new = fact("new", "", Quota("5h", 1), now=now)
        assert await store.put([new], which) == [ACCEPTED]
        names = {f.key: name for name, f in facts.items()}
        assert sorted(names[f.key] for f in store.facts(ALL) if f.key in names) == sorted(left)
        assert len(store.facts(frozenset({"new"}))) == 1

    async def test_whoever_subscribed_hears_which_providers_changed(self, store: FactStore, place: Backend) -> None:
        told: list[frozenset[str]] = []
        end = store.subscribe(told.append)
        await store.put(
            [fact("p", "", Quota("5h", 1), now=place.now()), fact("q", "", Quota("5h", 1), now=place.now())]
        )
        assert {"p", "q"} <= set().union(*told)
        end()
        told.clear()
        await store.put([fact("r", "", Quota("5h", 1), now=place.now())])
        assert told == []

    async def test_other_limits_apply_to_what_is_stored(self, store: FactStore, place: Backend) -> None:
        now = place.now()
        await store.put([fact("p", "", Quota("5h", 1), now=now, age=60 * SECOND)])
        assert is_fresh(store.facts(ALL)[0], now)
        store.relimit(FreshnessLimits(quota=30 * SECOND))
        assert not is_fresh(store.facts(ALL)[0], now)
        await store.put([fact("p", "", Quota("7d", 1), now=now, age=60 * SECOND)])
        store.relimit(FreshnessLimits())
        assert all(is_fresh(f, now) for f in store.facts(ALL))

    async def test_a_batch_is_seen_whole(self, store: FactStore, place: Backend) -> None:
        """Nobody who looks at any moment sees two facts of one batch disagree."""
        seen: set[tuple[float, ...]] = set()

        def look(_: object = None) -> None:
            seen.add(tuple(f.value.remaining_percent for f in store.facts(ALL) if isinstance(f.value, Quota)))

        store.subscribe(look)
        for number in range(1, 20):
            now = place.now()
            batch = [fact(f"p{i}", "", Quota("5h", number), now=now, sequence=number) for i in range(50)]
            await asyncio.gather(store.put(batch), asyncio.sleep(0))
            look()
        assert all(len(set(values)) <= 1 and len(values) in (0, 50) for values in seen)
        assert max(values[0] for values in seen if values) == 19

    async def test_many_writers_at_once_leave_the_newest(self, store: FactStore, place: Backend) -> None:
        now = place.now()
        facts = [fact("p", "", Quota("5h", n / 2), now=now, age=(200 - n) * SECOND // 10) for n in range(200)]
        results: Sequence[Sequence[ObservationResult]] = await asyncio.gather(
            *(store.put([f]) for f in sorted(facts, key=lambda f: hash(f.captured)))
        )
        assert ACCEPTED in {r for (r,) in results}
        assert is_same(store.facts(ALL)[0], facts[-1])
