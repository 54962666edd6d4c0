"""Random trees of hops from many callers at once, on every store, against the naive guard.

No limit is ever exceeded by one, no legal hop is refused, a refused hop charges nothing: the two must answer alike.
"""

import asyncio
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tidegate_server.core.flow.model import (
    Entered,
    Exited,
    FlowAsk,
    FlowKey,
    FlowLimits,
    HopAsk,
    Missing,
    Misused,
    Proof,
    Recorded,
    Refused,
    Signed,
    Unproved,
)
from tidegate_server.core.model import SECOND
from tidegate_server.ports import FlowStore
from tidegate_server.stores.guarded_flows import GuardedFlowStore
from tidegate_server.stores.memory_flows import MemoryFlowStore
from tidegate_server.stores.sqlite_flows import SqliteFlowStore

from tests.contract.flow_store_contract import ManualClock
from tests.property.naive_flows import MAX, NaiveGuard

AGENTS = ("A", "B", "C", "D")
TRACES = ("1" * 32, "2" * 32)
TOKENS = st.sampled_from((0, 0, 0, 1, 5, 10, 30, 60, MAX - 1, MAX))
HOP = st.tuples(
    st.sampled_from(TRACES),
    st.sampled_from(("", "", *AGENTS)),
    st.sampled_from(AGENTS),
    st.one_of(st.just("none"), st.just("none"), st.just("bad"), st.integers(0, 30)),
    TOKENS,
    st.sampled_from(("", "", "r1", "r2")),
)


class FlowMachine(RuleBasedStateMachine):
    """One store and one naive guard that are asked the same."""

    durable = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.epoch = self.clock.wall()
        self.ids = count(1)
        self.granted: list[tuple[str, str, str, int]] = []
        self.directory = tempfile.TemporaryDirectory()
        self.store: FlowStore = self.run(self.open())

    async def open(self) -> FlowStore:
        return MemoryFlowStore(self.clock)

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    @initialize(
        depth=st.integers(1, 4), fan_out=st.integers(1, 8), tokens=st.sampled_from((10, 60, 200, MAX)), time=st.just(60)
    )
    def configure(self, depth: int, fan_out: int, tokens: int, time: int) -> None:
        self.limits = FlowLimits(depth, fan_out, tokens, time * SECOND)
        self.naive = NaiveGuard((depth, fan_out, tokens, time), 100)

    @rule(hops=st.lists(HOP, min_size=1, max_size=12))
    def enter_at_once(self, hops: list[tuple[str, str, str, str | int, int, str]]) -> None:
        asked, expected = [], []
        for trace, caller, target, wanted, reserve, request_id in hops:
            proof, naive_proof = self.proof_for(trace, caller, wanted)
            hop_id = f"{next(self.ids):016x}"
            key = FlowKey("default", trace)
            asked.append(HopAsk(key, proof, caller, target, hop_id, self.limits, 100 * SECOND, request_id, reserve))
            expected.append(self.naive.enter(trace, caller, target, hop_id, naive_proof, reserve, request_id))
        answers = self.run(self.enter_all(asked))
        assert [told(answer) for answer in answers] == expected
        for ask, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Entered):
                start = (answer.start - self.epoch) // SECOND
                self.granted.append((ask.key.trace_id, answer.hop.hop_id, ask.target, start))

    async def enter_all(self, asked: list[HopAsk]) -> list[Entered | Refused | Misused]:
        return await asyncio.gather(*(self.store.enter(ask) for ask in asked))

    @rule(
        trace=st.sampled_from(TRACES),
        agent=st.sampled_from(AGENTS),
        wanted=st.one_of(st.just("none"), st.integers(0, 30)),
    )
    def check(self, trace: str, agent: str, wanted: str | int) -> None:
        proof, naive_proof = self.proof_for(trace, agent, wanted)
        answer = self.run(self.store.check(FlowAsk(FlowKey("default", trace), proof, agent)))
        assert (told(answer) if answer is not None else "ok") == self.naive.check(trace, agent, naive_proof)

    @rule(pick=st.integers(0, 50), tokens=TOKENS)
    def exit(self, pick: int, tokens: int) -> None:
        trace, hop_id = self.pick(pick)
        answer = self.run(self.store.exit(FlowKey("default", trace), hop_id, tokens, True))
        assert told(answer) == self.naive.exit(trace, hop_id, tokens)

    @rule(pick=st.integers(0, 50), tokens=TOKENS)
    def record(self, pick: int, tokens: int) -> None:
        trace, hop_id = self.pick(pick)
        answer = self.run(self.store.record(FlowKey("default", trace), hop_id, tokens, ""))
        assert told(answer) == self.naive.record(trace, hop_id, tokens)

    @rule(hop=HOP)
    def enter_and_cancel(self, hop: tuple[str, str, str, str | int, int, str]) -> None:
        trace, caller, target, wanted, reserve, _ = hop
        proof, naive_proof = self.proof_for(trace, caller, wanted)
        hop_id, key = f"{next(self.ids):016x}", FlowKey("default", trace)
        ask = HopAsk(key, proof, caller, target, hop_id, self.limits, 100 * SECOND, "", reserve)
        would = self.run(self.store.would_enter(ask, count=False))
        expected = self.naive.enter(trace, caller, target, hop_id, naive_proof, reserve, "")
        assert (told(would) if would is not None else f"ok {hop_id}") == expected
        assert told(self.run(self.store.enter(ask))) == expected
        self.run(self.store.cancel(key, hop_id))
        self.naive.cancel(trace, hop_id)

    @rule(seconds=st.sampled_from((1, 20, 59, 61, 101)))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds * SECOND)
        self.naive.now += seconds

    @rule(hours=st.sampled_from((-5, 5)))
    def the_wall_clock_steps(self, hours: int) -> None:
        self.clock.step(hours * 3600 * SECOND)

    @rule(limit=st.integers(0, 3))
    def sweep(self, limit: int) -> None:
        assert self.run(self.store.sweep(limit)) <= limit

    @invariant()
    def alike(self) -> None:
        if not hasattr(self, "naive"):
            return
        for trace in TRACES:
            found = self.run(self.store.get(FlowKey("default", trace)))
            flow, naive = (found[0] if found is not None else None), self.naive.flow(trace)
            assert (flow is None) == (naive is None)
            if flow is None or naive is None:
                continue
            assert len(flow.hops) <= self.limits.max_fan_out
            assert flow.tokens == min(MAX, naive.used)
            assert [(h.hop_id, h.charge, h.end is None, list(h.chain)) for h in flow.hops.values()] == [
                (h.hop_id, h.charge, h.open, h.chain) for h in naive.hops
            ]

    def proof_for(self, trace: str, agent: str, wanted: str | int) -> tuple[Proof, tuple[str, int] | str]:
        """A proof that a real member could give: only one that was signed for this agent in this flow is good."""
        if not agent or wanted == "none":
            return Unproved.NO_MEMBER, "none"
        mine = [(hop, start) for where, hop, target, start in self.granted if where == trace and target == agent]
        if wanted == "bad" or not mine or not isinstance(wanted, int):
            return Unproved.BAD_MEMBER, "bad"
        hop, start = mine[wanted % len(mine)]
        return Signed(hop, self.epoch + start * SECOND, self.limits.timeout), (hop, start)

    def pick(self, number: int) -> tuple[str, str]:
        if not self.granted or number == 50:
            return TRACES[0], "f" * 16
        trace, hop_id, _, _ = self.granted[number % len(self.granted)]
        return trace, hop_id

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()
        self.directory.cleanup()


class GuardedMachine(FlowMachine):
    async def open(self) -> FlowStore:
        return GuardedFlowStore(MemoryFlowStore(self.clock), self.clock)


class SqliteMachine(FlowMachine):
    async def open(self) -> FlowStore:
        return await SqliteFlowStore.open(Path(self.directory.name) / "state", self.clock)

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        # The wall clock may stand anywhere after its steps; what the store has seen is where it begins again.
        self.clock.step(self.epoch + self.naive.now * SECOND - self.clock.wall())
        self.store = self.run(self.open())


def told(answer: object) -> str:
    match answer:
        case Entered():
            return f"ok {answer.hop.hop_id}"
        case Refused():
            return answer.refusal.reason.name.removeprefix("FLOW_")
        case Misused():
            return "INVALID"
        case Exited():
            return f"{answer.closed} {answer.remaining.tokens}"
        case Recorded():
            return f"{answer.used} {answer.remaining} {answer.hop_open}"
        case Missing():
            return f"no {answer.value}"
        case _:
            return repr(answer)


@pytest.mark.parametrize("machine", [FlowMachine, GuardedMachine, SqliteMachine])
def test_every_store_answers_as_the_naive_guard_does(machine: type[FlowMachine]) -> None:
    examples = 25 if machine is SqliteMachine else 100
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
