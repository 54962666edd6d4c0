"""The store stopped, hung, failing or answering garbage: every hop refused in time, none counted, healed by itself."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tidegate.v1 import flow_pb2
from tidegate_server.core.flow.model import FlowKey, FlowLimits, FlowSettings, Granted
from tidegate_server.core.model import SECOND, Caller
from tidegate_server.ports import Clock
from tidegate_server.stores.memory_flows import MemoryFlowStore
from tidegate_server.usecases.admit import AdmitAsk
from tidegate_server.usecases.cold_wait import WaitBudget
from tidegate_server.usecases.flow_status import tend
from tidegate_server.usecases.flows import HopOfAdmission, HopRequest

from tests.integration.flow.serving import ADMITTED, START, TRACE, Served, carried, code, rejected, serving

KEY = FlowKey("default", TRACE)
BUDGET = 3 * SECOND // 10
"""§8: FLOW_GUARD_UNAVAILABLE within 300 ms."""


class Troubled(MemoryFlowStore):
    """A store whose answers a test can spoil. `before` runs ahead of each call, `after` ahead of each answer.

    `garbage` is answered in the place of all that.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.calls = 0
        self.before: Callable[[], Any] | None = None
        self.after: Callable[[Any], Any] | None = None
        self.garbage: object = None

    async def enter(self, ask: Any) -> Any:
        return await self._spoil(super().enter(ask))

    async def would_enter(self, ask: Any, *, count: bool) -> Any:
        return await self._spoil(super().would_enter(ask, count=count))

    async def check(self, ask: Any) -> Any:
        return await self._spoil(super().check(ask))

    async def exit(self, key: Any, hop_id: str, tokens: int, success: bool) -> Any:
        return await self._spoil(super().exit(key, hop_id, tokens, success))

    async def sweep(self, limit: int) -> Any:
        return await self._spoil(super().sweep(limit))

    async def _spoil(self, call: Any) -> Any:
        self.calls += 1
        if self.garbage is not None:
            call.close()
            return self.garbage
        try:
            if self.before is not None:
                await self.before()
        except BaseException:
            call.close()
            raise
        answer = await call
        return await self.after(answer) if self.after is not None else answer


async def hang() -> None:
    await asyncio.Event().wait()


async def refuse_connection() -> None:
    raise ConnectionRefusedError("valkey://user:secret@10.0.0.1:6379 refused")


async def somebody_elses(answer: Any) -> Any:
    return answer._replace(hop=answer.hop._replace(target="Z")) if hasattr(answer, "hop") else answer


def stopped(store: Troubled) -> None:
    store.before = refuse_connection


def hung(store: Troubled) -> None:
    store.before = hang


def lying(store: Troubled) -> None:
    store.garbage = b"-ERR unknown command"


def confused(store: Troubled) -> None:
    store.after = somebody_elses


def unavailable(store: Troubled) -> None:
    store.unavailable = True


@pytest.mark.parametrize("trouble", [stopped, hung, lying, confused, unavailable])
async def test_case_22_every_hop_is_refused_in_time_and_it_heals_by_itself(
    trouble: Callable[[Troubled], None],
) -> None:
    stores: list[Troubled] = []

    def make(clock: Clock) -> Troubled:
        stores.append(Troubled(clock))
        return stores[0]

    async with serving(make) as served:
        await served.healthy_engine()
        store = stores[0]
        a = await served.grant("", "A")
        trouble(store)

        async def in_time(callers: int) -> list[flow_pb2.EnterHopResponse]:
            """The answers of so many at once: all there when the time that §8 gives has passed, and not a moment on."""
            asked = store.calls
            calls = [asyncio.ensure_future(served.enter("A", "B", a)) for _ in range(callers)]
            async with asyncio.timeout(30):
                while store.calls < asked + callers and not all(call.done() for call in calls):
                    await asyncio.sleep(0.001)
                await served.clock.advance(BUDGET)
                return await asyncio.gather(*calls)

        (first,) = await in_time(1)
        assert code(first) == "flow_guard_unavailable"
        assert (first.refusal.http_status, first.refusal.retryable) == (503, True)
        assert "secret" not in str(first)
        assert not served.store.healthy()
        if trouble is not confused:
            asked = store.calls
            admission = asyncio.ensure_future(served.admit(flow=flow_pb2.FlowCheck(**carried(a), agent="A")))
            async with asyncio.timeout(30):
                while store.calls == asked and not admission.done():
                    await asyncio.sleep(0.001)
                await served.clock.advance(BUDGET)
                assert code(await admission) == "flow_guard_unavailable"
        assert {code(answer) for answer in await in_time(100)} == {"flow_guard_unavailable"}

        asked = store.calls
        for _ in range(20):
            assert await served.refusal("A", "B", a) == "flow_guard_unavailable"
        if trouble is not confused:  # which alternates with good answers, and so is asked on
            assert store.calls == asked, "a store that is down is left alone"

        store.before = store.after = store.garbage = None
        store.unavailable = False
        await served.clock.advance(6 * SECOND)
        tending = asyncio.ensure_future(tend(served.store, served.clock))
        await asyncio.sleep(0.01)
        tending.cancel()
        assert served.store.healthy(), "found well again without traffic"
        if trouble is not confused:  # which did charge the hops that it gave to somebody else
            flow = await served.flow()
            assert (flow.invocations, flow.open_hops) == (1, 1)
        assert (await served.enter("A", "B", a)).verdict == ADMITTED


async def test_a_call_that_settles_gets_a_status_and_its_repeat_settles() -> None:
    stores: list[Troubled] = []

    def make(clock: Clock) -> Troubled:
        stores.append(Troubled(clock))
        return stores[0]

    async with serving(make) as served:
        a = await served.grant("", "A", reserve_tokens=5)
        stores[0].unavailable = True
        error = await rejected(served.exit(a, 1))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "FLOW_STORE_UNAVAILABLE")
        assert error.retry
        stores[0].unavailable = False
        assert (await served.exit(a, 1)).closed


async def test_a_hop_that_is_granted_too_late_is_given_back() -> None:
    stores: list[Troubled] = []
    gate = asyncio.Event()

    def make(clock: Clock) -> Troubled:
        stores.append(Troubled(clock))
        return stores[0]

    async with serving(make) as served:
        a = await served.grant("", "A")

        async def late(answer: Any) -> Any:
            await gate.wait()
            return answer

        stores[0].after = late
        asked = stores[0].calls
        refusal = asyncio.ensure_future(served.refusal("A", "B", a, reserve_tokens=9))
        async with asyncio.timeout(30):
            while stores[0].calls == asked:
                await asyncio.sleep(0.001)
            await served.clock.advance(BUDGET)
            assert await refusal == "flow_guard_unavailable"
        stores[0].after = None
        assert len((await _flow(served)).hops) == 2, "it happened, and nobody knows of it"
        gate.set()
        await asyncio.sleep(0.01)
        flow = await _flow(served)
        assert (len(flow.hops), flow.tokens) == (1, 0)


@pytest.mark.parametrize("verb", ["EnterHop", "Admit"])
async def test_case_28_aborted_callers_leave_no_hop_behind(verb: str) -> None:
    """300 callers go away at different points: before the store, in it, and before the answer."""
    stores: list[Troubled] = []

    def make(clock: Clock) -> Troubled:
        stores.append(Troubled(clock))
        return stores[0]

    async with serving(make) as served:
        await served.healthy_engine()

        async def some_turns(answer: Any = None) -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
            return answer

        stores[0].before, stores[0].after = some_turns, some_turns
        served.settings = FlowSettings({"": FlowLimits(max_fan_out=1)})
        outcomes = []
        for number in range(300):
            task = asyncio.ensure_future(_ask(served, verb, number))
            for _ in range(number % 25):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            outcomes.append(outcome)
            if isinstance(outcome, Granted):  # answered before it could be cancelled: this caller has the hop
                await served.guard.cancel(outcome)
            async with asyncio.timeout(1):
                while await stores[0].get(KEY) is not None:
                    await asyncio.sleep(0)
        assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        assert any(isinstance(outcome, Granted) for outcome in outcomes)
        assert isinstance(await _ask(served, verb, 300), Granted)


async def _ask(served: Served, verb: str, number: int) -> Granted | None:
    request, caller = HopRequest(START, "", "", "A"), Caller()
    if verb == "EnterHop":
        answer = await served.enter_hop(request, caller)
        return answer if isinstance(answer, Granted) else None
    context = HopOfAdmission(served.guard, served.guard.hop(request, caller), dry_run=False)
    ask = AdmitAsk("managed/free", f"w{number}", 1, flow=context)
    return (await served.admit_verb(ask, caller, WaitBudget(served.clock.monotonic()))).hop


async def _flow(served: Served) -> Any:
    found = await served.store.get(KEY)
    assert found is not None
    return found[0]
