"""What every store of flows must do, whatever it is made of. A store joins with a backend and two lines:

class TestMyFlows(FlowStoreContract):
    backend = MyBackend

The rules one by one are tests of the core; here it is about what a store adds: one atomic step however many call at
once, state that lasts, time, pages, and being told of changes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from tidegate_server.core.flow.model import (
    MAX_TOKENS,
    Entered,
    EventKind,
    Exited,
    Flow,
    FlowAsk,
    FlowEvent,
    FlowKey,
    FlowLimits,
    FlowPlace,
    Hop,
    HopAsk,
    Missing,
    Misused,
    Recorded,
    Refused,
    Signed,
    Unproved,
)
from tidegate_server.core.model import SECOND, Nanos, RefusalReason
from tidegate_server.ports import FlowStore

R = RefusalReason
FLOW = FlowKey("default", "4bf92f3577b34da6a3ce929d0e0e4736")
LIMITS = FlowLimits(max_depth=5, max_fan_out=20, max_tokens=100, timeout=120 * SECOND)
STATE_TTL: Nanos = 300 * SECOND

_ids = count(1)


class ManualClock:
    """A clock that moves when it is told to. `step` moves the wall clock alone."""

    def __init__(self, wall: int = 1_800_000_000 * SECOND) -> None:
        self._wall = wall
        self._monotonic = 5_000 * SECOND
        self._timers: list[tuple[int, Callable[[], object]]] = []

    def monotonic(self) -> int:
        return self._monotonic

    def wall(self) -> int:
        return self._wall

    async def sleep(self, length: Nanos) -> None:
        self.advance(length)
        await asyncio.sleep(0)

    def after(self, length: Nanos, do: Callable[[], object]) -> Callable[[], object]:
        timer = (self._monotonic + length, do)
        self._timers.append(timer)

        def call_off() -> None:
            if timer in self._timers:
                self._timers.remove(timer)

        return call_off

    def advance(self, length: Nanos) -> None:
        self._monotonic += length
        self._wall += length
        for timer in [timer for timer in self._timers if timer[0] <= self._monotonic]:
            self._timers.remove(timer)
            timer[1]()

    def step(self, length: Nanos) -> None:
        self._wall += length


class Backend(Protocol):
    """One kind of store, with an empty place and a clock of its own."""

    durable: ClassVar[bool]

    def __init__(self, directory: Path) -> None: ...

    async def open(self) -> FlowStore:
        """The store of this place; durable ones find what was stored before."""
        ...

    async def advance(self, length: Nanos) -> None:
        """Let time pass for the store."""
        ...


def ask(caller: str, target: str, **fields: Any) -> HopAsk:
    """A hop that finds its parent by search, with an id of its own."""
    hop = HopAsk(FLOW, Unproved.NO_MEMBER, caller, target, f"{next(_ids):016x}", LIMITS, STATE_TTL)
    return hop._replace(**fields)


async def enter(store: FlowStore, caller: str, target: str, **fields: Any) -> Hop:
    entered = await store.enter(ask(caller, target, **fields))
    assert isinstance(entered, Entered), entered
    return entered.hop


async def flow_of(store: FlowStore, key: FlowKey = FLOW) -> Flow:
    found = await store.get(key)
    assert found is not None
    return found[0]


def reason(answer: object) -> RefusalReason:
    assert isinstance(answer, Refused), answer
    return answer.refusal.reason


class FlowStoreContract:
    """The suite. `backend` is the kind of store under test."""

    backend: type[Backend]

    @pytest.fixture
    def place(self, tmp_path: Path) -> Backend:
        return self.backend(tmp_path)

    @pytest.fixture
    async def store(self, place: Backend) -> AsyncIterator[FlowStore]:
        store = await place.open()
        yield store
        await store.close()

    async def test_what_is_not_known_is_told_so(self, store: FlowStore) -> None:
        assert await store.get(FLOW) is None
        assert await store.exit(FLOW, "00" * 8, 0, True) is Missing.FLOW
        assert await store.record(FLOW, "00" * 8, 0, "") is Missing.FLOW
        assert reason(await store.enter(ask("A", "B"))) is R.FLOW_UNKNOWN
        assert reason(await store.check(FlowAsk(FLOW, Unproved.NO_MEMBER, "A"))) is R.FLOW_UNKNOWN
        await store.cancel(FLOW, "00" * 8)
        assert store.healthy()

    async def test_a_hop_is_kept_whole(self, store: FlowStore) -> None:
        a = await enter(store, "", "Ünïcode 漢字 A", reserve=7, request_id="réq")
        b = await enter(store, a.target, "B", reserve=1)
        await store.exit(FLOW, b.hop_id, 3, False)
        flow = await flow_of(store)
        assert flow.hops[a.hop_id] == a
        assert (flow.hops[b.hop_id].recorded, flow.hops[b.hop_id].success) == (3, False)
        assert (flow.tokens, flow.deepest, list(flow.open)) == (10, 2, [a.hop_id])

    async def test_every_answer_of_a_flows_life(self, store: FlowStore) -> None:
        a = await enter(store, "", "A", reserve=60, request_id="r")
        assert (await enter(store, "", "A", reserve=60, request_id="r")).hop_id == a.hop_id
        assert isinstance(await store.enter(ask("", "B", request_id="r")), Misused)
        assert reason(await store.enter(ask("A", "B", reserve=41))) is R.FLOW_TOKENS_EXHAUSTED
        assert reason(await store.would_enter(ask("A", "A"), count=True)) is R.FLOW_CYCLE_DETECTED
        assert await store.would_enter(ask("A", "B"), count=True) is None
        assert await store.check(FlowAsk(FLOW, Unproved.NO_MEMBER, "A")) is None
        assert await store.record(FLOW, a.hop_id, 70, "t") == Recorded(70, 30, True)
        assert await store.record(FLOW, a.hop_id, 70, "t") == Recorded(70, 30, True)
        assert isinstance(await store.record(FLOW, a.hop_id, 71, "t"), Misused)
        exited = await store.exit(FLOW, a.hop_id, 10, True)
        assert isinstance(exited, Exited)
        assert (exited.closed, exited.remaining.tokens, exited.remaining.fan_out) == (True, 20, 19)
        again = await store.exit(FLOW, a.hop_id, 10, True)
        assert isinstance(again, Exited)
        assert (again.closed, again.remaining.tokens) == (False, 20)
        assert reason(await store.enter(ask("", "A", request_id="r"))) is R.FLOW_HOP_CLOSED
        assert (await flow_of(store)).refusals == 3

    async def test_namespaces_are_apart(self, store: FlowStore) -> None:
        other = FLOW._replace(namespace="other")
        await enter(store, "", "A")
        assert await store.get(other) is None
        assert reason(await store.enter(ask("A", "B", key=other))) is R.FLOW_UNKNOWN
        await enter(store, "", "X", key=other)
        assert (await flow_of(store)).root_agent == "A"
        page, _ = await store.list("other", open_only=False, after=None, limit=10)
        assert [flow.key for flow in page.flows] == [other]

    async def test_of_200_at_once_exactly_one_gets_the_last_place(self, store: FlowStore) -> None:
        limits = LIMITS._replace(max_fan_out=2)
        await enter(store, "", "A", limits=limits)
        answers = await asyncio.gather(*(store.enter(ask("A", f"B{n}", reserve=1)) for n in range(200)))
        assert sum(isinstance(answer, Entered) for answer in answers) == 1
        assert {reason(answer) for answer in answers if not isinstance(answer, Entered)} == {R.FLOW_FAN_OUT_EXCEEDED}
        flow = await flow_of(store)
        assert (len(flow.hops), flow.tokens, flow.refusals) == (2, 1, 199)

    async def test_of_200_at_once_exactly_one_gets_the_last_tokens(self, store: FlowStore) -> None:
        limits = LIMITS._replace(max_fan_out=1_000)
        a = await enter(store, "", "A", limits=limits)
        await store.record(FLOW, a.hop_id, 95, "")
        answers = await asyncio.gather(*(store.enter(ask("A", "B", reserve=3)) for _ in range(200)))
        assert sum(isinstance(answer, Entered) for answer in answers) == 1
        assert (await flow_of(store)).tokens == 98

    async def test_case_53_parallel_children_never_share_a_budget(self, store: FlowStore) -> None:
        limits = LIMITS._replace(max_fan_out=8)
        await enter(store, "", "A", limits=limits)
        answers = await asyncio.gather(*(store.enter(ask("A", "B")) for _ in range(50)))
        assert sum(isinstance(answer, Entered) for answer in answers) == 7

    async def test_of_200_with_one_request_id_all_get_one_hop(self, store: FlowStore) -> None:
        answers = await asyncio.gather(*(store.enter(ask("", "A", request_id="r", reserve=2)) for _ in range(200)))
        hops = {answer.hop.hop_id for answer in answers if isinstance(answer, Entered)}
        assert (len(hops), sum(isinstance(answer, Entered) for answer in answers)) == (1, 200)
        flow = await flow_of(store)
        assert (len(flow.hops), flow.tokens) == (1, 2)

    async def test_a_hop_given_to_many_goes_when_all_have_given_it_back(self, store: FlowStore) -> None:
        hops = [await enter(store, "", "A", request_id="r") for _ in range(3)]
        for hop in hops:
            assert await store.check(FlowAsk(FLOW, Unproved.NO_MEMBER, "A")) is None
            await store.cancel(FLOW, hop.hop_id)
        assert await store.get(FLOW) is None

    async def test_of_200_exits_at_once_one_closes(self, store: FlowStore) -> None:
        a = await enter(store, "", "A", reserve=50)
        answers = await asyncio.gather(*(store.exit(FLOW, a.hop_id, 5, True) for _ in range(200)))
        assert sum(isinstance(answer, Exited) and answer.closed for answer in answers) == 1
        assert (await flow_of(store)).tokens == 5

    async def test_case_59_numbers_at_their_ends_stay_whole(self, place: Backend) -> None:
        store = await place.open()
        limits = FlowLimits(2**31 - 1, 2**31 - 1, MAX_TOKENS, 100 * 365 * 86_400 * SECOND)
        a = await enter(store, "", "A", limits=limits)
        assert await store.record(FLOW, a.hop_id, MAX_TOKENS - 1, "") == Recorded(MAX_TOKENS - 1, 1, True)
        assert await store.record(FLOW, a.hop_id, 5, "") == Recorded(MAX_TOKENS, 0, True)
        assert await store.record(FLOW, a.hop_id, MAX_TOKENS, "") == Recorded(MAX_TOKENS, 0, True)
        assert reason(await store.enter(ask("A", "B", reserve=MAX_TOKENS))) is R.FLOW_TOKENS_EXHAUSTED
        if place.durable:
            await store.close()
            store = await place.open()
        flow = await flow_of(store)
        assert type(flow.hops[a.hop_id].recorded) is int
        assert (flow.tokens, flow.limits) == (MAX_TOKENS, limits)
        await store.close()

    async def test_a_taken_hop_id_is_no_grant(self, store: FlowStore) -> None:
        a = await enter(store, "", "A")
        with pytest.raises(Exception):  # noqa: B017, PT011 - a fault, whatever its name
            await store.enter(ask("A", "B", hop_id=a.hop_id))
        assert list((await flow_of(store)).hops.values()) == [a]

    async def test_time_runs_out_and_the_state_outlives_it(self, store: FlowStore, place: Backend) -> None:
        a = await enter(store, "", "A")
        flow = await flow_of(store)
        proof = Signed(a.hop_id, flow.start, LIMITS.timeout)
        await place.advance(120 * SECOND)
        b = await enter(store, "A", "B", proof=proof)
        await place.advance(1)
        assert reason(await store.enter(ask("A", "B", proof=proof))) is R.FLOW_TIMEOUT
        await place.advance(300 * SECOND - 1)
        assert isinstance(await store.exit(FLOW, b.hop_id, 0, True), Exited)
        await place.advance(1)
        assert await store.get(FLOW) is None
        assert reason(await store.enter(ask("A", "B", proof=proof))) is R.FLOW_TIMEOUT
        assert reason(await store.enter(ask("A", "B"))) is R.FLOW_UNKNOWN
        assert await store.sweep(10) in (0, 1)
        assert await store.sweep(10) == 0
        assert reason(await store.enter(ask("A", "B", proof=proof))) is R.FLOW_TIMEOUT
        await enter(store, "", "A")

    async def test_a_fresh_life_of_a_trace_id_has_nothing_of_the_old_one(self, place: Backend) -> None:
        store = await place.open()
        a = await enter(store, "", "A", request_id="r")
        await store.record(FLOW, a.hop_id, 9, "t")
        await store.exit(FLOW, a.hop_id, 0, True)
        await place.advance(121 * SECOND)
        fresh = await enter(store, "", "B")
        if place.durable:
            await store.close()
            store = await place.open()
        flow = await flow_of(store)
        assert (list(flow.hops), flow.tokens, flow.records, flow.requests) == ([fresh.hop_id], 0, {}, {})
        await store.close()

    async def test_pages_are_whole_and_in_order(self, store: FlowStore, place: Backend) -> None:
        for number in range(1, 8):
            key = FlowKey("default", f"{number:032x}")
            hop = await enter(store, "", "A", key=key)
            if number % 2:
                await store.exit(key, hop.hop_id, 0, True)
            if number % 3 == 0:
                await place.advance(SECOND)
        seen: list[int] = []
        after: FlowPlace | None = None
        while True:
            page, _ = await store.list("default", open_only=False, after=after, limit=2)
            assert len(page.flows) <= 2
            seen += [int(flow.key.trace_id, 16) for flow in page.flows]
            if page.next is None:
                break
            after = page.next
        assert seen == [7, 6, 5, 4, 3, 2, 1]
        page, _ = await store.list("default", open_only=True, after=None, limit=10)
        assert [int(flow.key.trace_id, 16) for flow in page.flows] == [6, 4, 2]

    async def test_changes_are_told_in_their_order_until_it_is_ended(self, store: FlowStore) -> None:
        told: list[FlowEvent] = []
        end = store.subscribe(told.append)
        a = await enter(store, "", "A")
        await store.enter(ask("A", "A"))
        await store.record(FLOW, a.hop_id, 1, "")
        b = await enter(store, "A", "B")
        await store.cancel(FLOW, b.hop_id)
        await store.exit(FLOW, a.hop_id, 0, True)
        end()
        await enter(store, "", "A")
        await asyncio.sleep(0)
        kind = EventKind
        assert [event.kind for event in told] == [
            kind.ENTERED, kind.REFUSED, kind.RECORDED, kind.ENTERED, kind.CANCELLED, kind.EXITED,
        ]  # fmt: skip
        assert told[0].hop == a
        assert {event.key for event in told} == {FLOW}

    async def test_state_outlives_a_restart(self, place: Backend) -> None:
        if not place.durable:
            return
        store = await place.open()
        a = await enter(store, "", "A", reserve=5, request_id="r")
        b = await enter(store, "A", "B", reserve=9)
        await store.record(FLOW, b.hop_id, 2, "t")
        await store.exit(FLOW, b.hop_id, 1, True)
        c = await enter(store, "A", "C")
        await store.cancel(FLOW, c.hop_id)
        before = await flow_of(store)
        await store.close()
        await place.advance(60 * SECOND)
        store = await place.open()
        after = await flow_of(store)
        for name in ("start", "keep_until", "limits", "hops", "requests", "records", "used", "open", "deepest"):
            assert getattr(after, name) == getattr(before, name), name
        assert (await enter(store, "", "A", request_id="r")).hop_id == a.hop_id
        assert await store.record(FLOW, b.hop_id, 2, "t") == Recorded(8, 92, False)
        proof = Signed(a.hop_id, after.start, LIMITS.timeout)
        assert (await enter(store, "A", "D", proof=proof)).order > b.order
        await place.advance(60 * SECOND + 1)
        assert reason(await store.enter(ask("A", "D", proof=proof))) is R.FLOW_TIMEOUT
        await store.close()
