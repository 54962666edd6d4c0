"""§8 of the contract, rule by rule, on the book of flows."""

from itertools import count
from typing import Any

import pytest
from tidegate_server.core.flow.book import HOPS_PER_PAGE, FlowBook
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
    Hop,
    HopAsk,
    Missing,
    Misused,
    Proof,
    Recorded,
    Refused,
    Signed,
    Unproved,
)
from tidegate_server.core.flow.rules import RULES
from tidegate_server.core.model import SECOND, RefusalReason

R = RefusalReason
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
START = 1_700_000_000 * SECOND
LIMITS = FlowLimits(max_depth=5, max_fan_out=20, max_tokens=100, timeout=120 * SECOND)


class Guarded:
    """A book, a clock, and the short way to ask."""

    def __init__(self, limits: FlowLimits = LIMITS) -> None:
        self.events: list[FlowEvent] = []
        self.book = FlowBook(self.events.append)
        self.key = FlowKey("default", TRACE)
        self.limits = limits
        self.now = START
        self._ids = count(1)

    def ask(self, caller: str, target: str, proof: Proof = Unproved.NO_MEMBER, **fields: Any) -> HopAsk:
        ask = HopAsk(self.key, proof, caller, target, f"{next(self._ids):016x}", self.limits, 300 * SECOND)
        return ask._replace(**fields)

    def try_enter(
        self, caller: str, target: str, proof: Proof = Unproved.NO_MEMBER, **fields: Any
    ) -> Entered | Refused | Misused:
        return self.book.enter(self.ask(caller, target, proof, **fields), self.now)

    def enter(self, caller: str, target: str, proof: Proof = Unproved.NO_MEMBER, **fields: Any) -> Hop:
        granted = self.try_enter(caller, target, proof, **fields)
        assert isinstance(granted, Entered), granted
        return granted.hop

    def refused(self, caller: str, target: str, proof: Proof = Unproved.NO_MEMBER, **fields: Any) -> RefusalReason:
        refused = self.try_enter(caller, target, proof, **fields)
        assert isinstance(refused, Refused), refused
        return refused.refusal.reason

    def message(self, caller: str, target: str, proof: Proof = Unproved.NO_MEMBER, **fields: Any) -> str:
        refused = self.try_enter(caller, target, proof, **fields)
        assert isinstance(refused, Refused), refused
        return refused.refusal.message

    def proof(self, hop: Hop) -> Signed:
        return Signed(hop.hop_id, self.flow.start, self.limits.timeout)

    def exit(self, hop: Hop, tokens: int = 0) -> Exited:
        exited = self.book.exit(self.key, hop.hop_id, tokens, True, self.now)
        assert isinstance(exited, Exited)
        return exited

    def check(self, agent: str, proof: Proof = Unproved.NO_MEMBER) -> RefusalReason | None:
        refused = self.book.check(FlowAsk(self.key, proof, agent), self.now)
        return None if refused is None else refused.refusal.reason

    @property
    def flow(self) -> Flow:
        flow = self.book.get(self.key, self.now)
        assert flow is not None
        return flow


@pytest.fixture
def guard() -> Guarded:
    return Guarded()


def test_the_gateways_call_starts_a_flow_and_its_hops_chain(guard: Guarded) -> None:
    a = guard.enter("", "A")
    b = guard.enter("A", "B", guard.proof(a))
    assert (a.depth, a.chain, a.parent) == (1, ("A",), "")
    assert (b.depth, b.chain, b.parent) == (2, ("A", "B"), a.hop_id)
    assert (b.remaining.depth, b.remaining.fan_out, b.remaining.tokens) == (3, 18, 100)
    assert guard.flow.root_agent == "A"


def test_siblings_are_not_depth_and_a_repeated_sibling_is_no_cycle(guard: Guarded) -> None:
    a = guard.enter("", "A")
    siblings = [guard.enter("A", "B", guard.proof(a)) for _ in range(19)]
    assert {hop.depth for hop in siblings} == {2}
    assert guard.refused("A", "B", guard.proof(a)) is R.FLOW_FAN_OUT_EXCEEDED


def test_depth_is_refused_when_it_would_exceed(guard: Guarded) -> None:
    hop = guard.enter("", "1")
    for depth in range(2, 6):
        hop = guard.enter(hop.target, str(depth), guard.proof(hop))
        assert hop.depth == depth
    assert guard.refused("5", "6", guard.proof(hop)) is R.FLOW_DEPTH_EXCEEDED


def test_case_52_a_longer_cycle_is_refused_and_shows_its_path(guard: Guarded) -> None:
    a = guard.enter("", "A")
    b = guard.enter("A", "B", guard.proof(a))
    c = guard.enter("B", "C", guard.proof(b))
    assert "A → B → C → A" in guard.message("C", "A", guard.proof(c))
    assert guard.refused("C", "C", guard.proof(c)) is R.FLOW_CYCLE_DETECTED
    guard.exit(c)
    guard.exit(b)
    assert guard.enter("A", "B", guard.proof(a)).depth == 2


def test_case_51_one_trace_id_for_everything_is_told_with_start_and_trace_and_never_locked(guard: Guarded) -> None:
    granted = 0
    for _ in range(500):
        outcome = guard.try_enter("", "A")
        if isinstance(outcome, Entered):
            granted += 1
            guard.exit(outcome.hop)
        else:
            assert isinstance(outcome, Refused)
            assert outcome.refusal.reason in (R.FLOW_TIMEOUT, R.FLOW_FAN_OUT_EXCEEDED)
            assert TRACE in outcome.refusal.message
            assert "2023-11-1" in outcome.refusal.message
        guard.now += 7200 * SECOND // 500
    assert granted > 400
    guard.enter("", "A")  # never exits
    guard.now += 121 * SECOND
    assert guard.refused("", "A") is R.FLOW_TIMEOUT
    guard.now += 180 * SECOND
    assert guard.enter("", "A").order == 0


def test_tokens_are_refused_when_used_up_or_when_they_would_be(guard: Guarded) -> None:
    a = guard.enter("", "A", reserve=60)
    assert guard.refused("A", "B", reserve=41) is R.FLOW_TOKENS_EXHAUSTED
    b = guard.enter("A", "B", reserve=40)
    assert guard.refused("A", "C") is R.FLOW_TOKENS_EXHAUSTED
    assert guard.exit(b, 10).remaining.tokens == 30
    assert guard.exit(a, 0).remaining.tokens == 90
    assert guard.refused("", "A", reserve=91) is R.FLOW_TOKENS_EXHAUSTED
    assert guard.enter("", "A", reserve=90).remaining.tokens == 0


def test_an_open_hop_is_charged_the_larger_of_reserved_and_recorded(guard: Guarded) -> None:
    a = guard.enter("", "A", reserve=30)
    assert guard.book.record(guard.key, a.hop_id, 20, "", guard.now) == Recorded(30, 70, True)
    assert guard.book.record(guard.key, a.hop_id, 20, "", guard.now) == Recorded(40, 60, True)
    guard.exit(a, 5)
    assert guard.flow.tokens == 45
    assert guard.book.record(guard.key, a.hop_id, 55, "", guard.now) == Recorded(100, 0, False)
    assert Recorded(100, 0, False).exhausted


def test_a_flow_that_does_not_fit_its_own_first_hop_is_not_started(guard: Guarded) -> None:
    assert guard.refused("", "A", reserve=101) is R.FLOW_TOKENS_EXHAUSTED
    assert guard.book.get(guard.key, guard.now) is None


def test_case_31_a_refused_hop_charges_and_prolongs_nothing() -> None:
    guard = Guarded(LIMITS._replace(max_depth=1))
    a = guard.enter("", "A", reserve=10)
    before = guard.flow
    guard.now += 60 * SECOND
    for _ in range(100):
        assert guard.refused("A", "B", guard.proof(a), reserve=5) is R.FLOW_DEPTH_EXCEEDED
    after = guard.flow
    assert (after.used, len(after.hops), after.ends, after.keep_until) == (
        before.used,
        len(before.hops),
        before.ends,
        before.keep_until,
    )
    assert after.refusals == 100


def test_time_is_over_one_nanosecond_after_its_end(guard: Guarded) -> None:
    a = guard.enter("", "A")
    guard.now += 120 * SECOND
    b = guard.enter("A", "B", guard.proof(a))
    assert b.remaining.time == 0
    guard.now += 1
    assert guard.refused("A", "B", guard.proof(a)) is R.FLOW_TIMEOUT
    assert guard.refused("A", "B") is R.FLOW_TIMEOUT
    assert guard.refused("", "A") is R.FLOW_TIMEOUT
    assert guard.check("A", guard.proof(a)) is R.FLOW_TIMEOUT


def test_a_flow_out_of_time_starts_afresh_once_no_hop_is_open(guard: Guarded) -> None:
    a = guard.enter("", "A", reserve=50)
    old = guard.proof(a)
    guard.now += 121 * SECOND
    assert guard.refused("", "A") is R.FLOW_TIMEOUT
    guard.exit(a, 50)
    fresh = guard.enter("", "A")
    assert (guard.flow.tokens, len(guard.flow.hops), guard.flow.start) == (0, 1, guard.now)
    assert guard.refused("A", "B", old) is R.FLOW_TIMEOUT
    assert guard.enter("A", "B", guard.proof(fresh)).depth == 2


def test_state_is_kept_after_the_last_granted_hop_and_the_signed_start_tells_after_that(guard: Guarded) -> None:
    a = guard.enter("", "A")
    guard.now += 100 * SECOND
    guard.enter("A", "B", guard.proof(a))
    proof = guard.proof(a)
    guard.now += 300 * SECOND
    assert guard.refused("A", "B", proof) is R.FLOW_TIMEOUT
    assert guard.book.get(guard.key, guard.now) is not None
    guard.now += 1
    assert guard.book.get(guard.key, guard.now) is None
    assert guard.refused("A", "B", proof) is R.FLOW_TIMEOUT
    assert guard.refused("A", "B") is R.FLOW_UNKNOWN
    assert guard.check("A", proof) is R.FLOW_TIMEOUT
    assert guard.enter("", "A").order == 0


def test_state_that_was_lost_in_time_is_unknown_never_a_fresh_flow(guard: Guarded) -> None:
    lost = Signed("00000000000000aa", guard.now - SECOND, LIMITS.timeout)
    assert guard.refused("A", "B", lost) is R.FLOW_UNKNOWN
    assert guard.book.get(guard.key, guard.now) is None


def test_a_long_profile_keeps_state_until_its_time_is_over() -> None:
    guard = Guarded(LIMITS._replace(timeout=1800 * SECOND))
    a = guard.enter("", "A")
    guard.now += 1800 * SECOND
    assert guard.enter("A", "B", guard.proof(a)).depth == 2


def test_without_a_member_the_parent_is_the_deepest_open_hop_into_the_caller(guard: Guarded) -> None:
    a = guard.enter("", "A")
    x_shallow = guard.enter("A", "X", guard.proof(a))
    b = guard.enter("A", "B", guard.proof(a))
    x_deep = guard.enter("B", "X", guard.proof(b))
    guard.enter("A", "X", guard.proof(a))
    assert guard.enter("X", "Y").parent == x_deep.hop_id
    guard.exit(x_deep)
    guard.exit(x_shallow)
    x_last = guard.enter("A", "X", guard.proof(a))
    assert guard.enter("X", "Z").parent == x_last.hop_id
    assert guard.refused("nobody", "Y") is R.FLOW_UNKNOWN


def test_a_bad_member_is_never_the_fallback(guard: Guarded) -> None:
    guard.enter("", "A")
    assert guard.refused("A", "B", Unproved.BAD_MEMBER) is R.FLOW_UNKNOWN
    assert guard.check("A", Unproved.BAD_MEMBER) is R.FLOW_UNKNOWN


def test_a_parent_that_has_exited_is_closed_when_signed_and_unknown_when_searched(guard: Guarded) -> None:
    a = guard.enter("", "A")
    guard.exit(a)
    assert guard.refused("A", "B", guard.proof(a)) is R.FLOW_HOP_CLOSED
    assert guard.refused("A", "B") is R.FLOW_UNKNOWN
    assert guard.check("A", guard.proof(a)) is R.FLOW_HOP_CLOSED


def test_the_table_is_in_the_contracts_order() -> None:
    assert [rule.reason.name.removeprefix("FLOW_") for rule in RULES] == [
        "UNKNOWN", "TIMEOUT", "HOP_CLOSED", "DEPTH_EXCEEDED", "CYCLE_DETECTED", "FAN_OUT_EXCEEDED", "TOKENS_EXHAUSTED",
    ]  # fmt: skip


def test_the_reasons_come_in_the_contracts_order() -> None:
    """A hop that breaks everything at once is told the first; take that away, and the next one is told."""
    guard = Guarded(FlowLimits(max_depth=1, max_fan_out=1, max_tokens=10, timeout=10 * SECOND))
    a = guard.enter("", "A", reserve=10)
    open_proof = guard.proof(a)
    guard.exit(a, 10)
    start = guard.now
    guard.now += 11 * SECOND
    assert guard.refused("A", "A", Unproved.BAD_MEMBER) is R.FLOW_UNKNOWN
    assert guard.refused("A", "A", open_proof) is R.FLOW_TIMEOUT
    guard.now = start
    assert guard.refused("A", "A", open_proof) is R.FLOW_HOP_CLOSED

    reasons = []
    for limits in (
        FlowLimits(1, 1, 10),
        FlowLimits(2, 1, 10),
        FlowLimits(2, 2, 10),
    ):
        guard = Guarded(limits)
        hop = guard.enter("", "A", reserve=10)
        target = "A" if limits.max_fan_out == 1 else "B"
        reasons.append(guard.refused("A", target, guard.proof(hop)))
        if limits.max_depth == 2:
            reasons.append(guard.refused("A", "B", guard.proof(hop)))
    assert reasons == [
        R.FLOW_DEPTH_EXCEEDED,
        R.FLOW_CYCLE_DETECTED,
        R.FLOW_FAN_OUT_EXCEEDED,
        R.FLOW_TOKENS_EXHAUSTED,
        R.FLOW_TOKENS_EXHAUSTED,
    ]


def test_a_repeated_request_answers_the_same_and_charges_once(guard: Guarded) -> None:
    a = guard.enter("", "A", request_id="r-root")
    b = guard.enter("A", "B", guard.proof(a), request_id="r1", reserve=10)
    guard.enter("A", "C", guard.proof(a))
    for proof in (guard.proof(a), Unproved.NO_MEMBER):
        again = guard.try_enter("A", "B", proof, request_id="r1", reserve=10)
        assert isinstance(again, Entered)
        assert again.repeated
        assert again.hop._replace(claims=1) == b
    assert guard.enter("", "A", request_id="r-root").hop_id == a.hop_id
    assert (len(guard.flow.hops), guard.flow.tokens) == (3, 10)


def test_a_repeat_passes_limits_that_are_reached_meanwhile(guard: Guarded) -> None:
    a = guard.enter("", "A", request_id="r", reserve=100)
    assert guard.enter("", "A", request_id="r").hop_id == a.hop_id
    assert guard.refused("", "A", request_id="other") is R.FLOW_TOKENS_EXHAUSTED


def test_a_repeat_finds_its_hop_though_a_deeper_parent_opened_since(guard: Guarded) -> None:
    a = guard.enter("", "A")
    x = guard.enter("A", "X")
    y = guard.enter("X", "Y", request_id="r")
    guard.enter("X", "B", guard.proof(x))
    guard.enter("B", "X2")
    guard.enter("A", "X", guard.proof(a))
    assert guard.enter("X", "Y", request_id="r").hop_id == y.hop_id


def test_another_use_of_a_request_id_is_malformed(guard: Guarded) -> None:
    a = guard.enter("", "A")
    b = guard.enter("A", "B", guard.proof(a), request_id="r")
    for caller, target, proof in (
        ("A", "C", guard.proof(a)),
        ("B", "C", guard.proof(b)),
        ("B", "C", Unproved.NO_MEMBER),
        ("", "B", Unproved.NO_MEMBER),
    ):
        assert isinstance(guard.try_enter(caller, target, proof, request_id="r"), Misused)
    assert guard.flow.refusals == 0


def test_a_repeat_after_the_exit_is_closed_and_after_the_time_over(guard: Guarded) -> None:
    a = guard.enter("", "A", request_id="r")
    guard.exit(a)
    assert guard.refused("", "A", request_id="r") is R.FLOW_HOP_CLOSED
    guard.now += 121 * SECOND
    assert guard.refused("", "A", request_id="r") is R.FLOW_TIMEOUT


def test_exit_closes_once(guard: Guarded) -> None:
    a = guard.enter("", "A", reserve=10)
    assert guard.exit(a, 7) == Exited(True, guard.flow.left(1, guard.now))
    assert guard.exit(a, 7).closed is False
    assert guard.flow.tokens == 7
    assert guard.book.exit(guard.key, "00" * 8, 0, True, guard.now) is Missing.HOP
    other = guard.key._replace(namespace="other")
    assert guard.book.exit(other, a.hop_id, 0, True, guard.now) is Missing.FLOW
    assert guard.book.record(other, a.hop_id, 0, "", guard.now) is Missing.FLOW
    assert guard.book.record(guard.key, "00" * 8, 0, "", guard.now) is Missing.HOP


def test_recorded_tokens_of_one_request_count_once(guard: Guarded) -> None:
    a = guard.enter("", "A")
    for _ in range(3):
        assert guard.book.record(guard.key, a.hop_id, 7, "r", guard.now) == Recorded(7, 93, True)
    assert isinstance(guard.book.record(guard.key, a.hop_id, 8, "r", guard.now), Misused)


def test_case_59_sums_saturate_and_never_wrap() -> None:
    guard = Guarded(LIMITS._replace(max_tokens=MAX_TOKENS))
    a = guard.enter("", "A")
    guard.book.record(guard.key, a.hop_id, MAX_TOKENS - 1, "", guard.now)
    assert guard.flow.left(1, guard.now).tokens == 1
    recorded = guard.book.record(guard.key, a.hop_id, 5, "", guard.now)
    assert recorded == Recorded(MAX_TOKENS, 0, True)
    assert guard.refused("A", "B") is R.FLOW_TOKENS_EXHAUSTED
    guard.exit(a, MAX_TOKENS)
    assert guard.flow.tokens == MAX_TOKENS
    guard = Guarded(LIMITS._replace(max_tokens=MAX_TOKENS))
    guard.enter("", "A", reserve=MAX_TOKENS - 1)
    assert guard.refused("", "B", reserve=MAX_TOKENS) is R.FLOW_TOKENS_EXHAUSTED


def test_an_inference_request_needs_its_hop_open_in_time_and_with_tokens(guard: Guarded) -> None:
    assert guard.check("A") is R.FLOW_UNKNOWN
    a = guard.enter("", "A", reserve=100)
    assert guard.check("A") is None, "the hop's own unspent reservation counts as left"
    assert guard.check("B") is R.FLOW_UNKNOWN
    guard.book.record(guard.key, a.hop_id, 99, "", guard.now)
    assert guard.check("A", guard.proof(a)) is None
    guard.book.record(guard.key, a.hop_id, 1, "", guard.now)
    assert guard.check("A", guard.proof(a)) is R.FLOW_TOKENS_EXHAUSTED


def test_an_inference_request_is_at_no_depth_and_no_hop() -> None:
    guard = Guarded(FlowLimits(1, 1, 10))
    guard.enter("", "A")
    assert guard.check("A") is None


def test_another_hops_reservation_does_not_count_as_left(guard: Guarded) -> None:
    a = guard.enter("", "A")
    guard.enter("A", "B", reserve=100)
    assert guard.check("A", guard.proof(a)) is R.FLOW_TOKENS_EXHAUSTED
    assert guard.check("B") is None


def test_what_would_be_said_charges_nothing_and_counts_only_when_asked(guard: Guarded) -> None:
    ask = guard.ask("", "A")
    assert guard.book.would_enter(ask, guard.now, count=True) is None
    assert guard.book.get(guard.key, guard.now) is None
    guard.enter("", "A", reserve=100)
    assert isinstance(guard.book.would_enter(ask, guard.now, count=False), Refused)
    assert guard.flow.refusals == 0
    assert isinstance(guard.book.would_enter(ask, guard.now, count=True), Refused)
    assert guard.flow.refusals == 1


def test_a_cancelled_hop_was_never_there(guard: Guarded) -> None:
    a = guard.enter("", "A", request_id="r", reserve=10)
    guard.book.cancel(guard.key, a.hop_id, guard.now)
    assert guard.book.get(guard.key, guard.now) is None
    a = guard.enter("", "A", request_id="r")
    b = guard.enter("A", "B", reserve=10)
    guard.book.cancel(guard.key, b.hop_id, guard.now)
    guard.book.cancel(guard.key, b.hop_id, guard.now)
    assert (len(guard.flow.hops), guard.flow.tokens, guard.flow.deepest) == (1, 0, 1)
    assert guard.check("B") is R.FLOW_UNKNOWN


def test_a_hop_that_a_repeat_was_given_survives_the_first_callers_cancel(guard: Guarded) -> None:
    a = guard.enter("", "A", request_id="r")
    guard.enter("", "A", request_id="r")
    guard.book.cancel(guard.key, a.hop_id, guard.now)
    assert guard.check("A") is None
    guard.book.cancel(guard.key, a.hop_id, guard.now)
    assert guard.check("A") is R.FLOW_UNKNOWN


def test_a_cancelled_hop_on_which_something_hangs_is_closed_instead(guard: Guarded) -> None:
    a = guard.enter("", "A", reserve=50)
    guard.enter("A", "B", guard.proof(a))
    guard.book.cancel(guard.key, a.hop_id, guard.now)
    assert guard.refused("A", "C", guard.proof(a)) is R.FLOW_HOP_CLOSED
    assert guard.flow.tokens == 0


def test_sweeping_is_bounded_and_forgets_only_what_is_over(guard: Guarded) -> None:
    for number in range(10):
        guard.key = FlowKey("default", f"{number + 1:032x}")
        guard.exit(guard.enter("", "A"))
        guard.now += SECOND
    guard.now = START + 200 * SECOND
    guard.key = FlowKey("default", f"{1:032x}")
    guard.enter("", "A")  # afresh: the old life's expiry must not end it
    guard.now = START + 305 * SECOND
    assert [guard.book.sweep(guard.now, 3), guard.book.sweep(guard.now, 3)] == [3, 1]
    assert guard.book.sweep(guard.now, 3) == 0
    assert guard.flow.start == START + 200 * SECOND
    guard.now += 1000 * SECOND
    assert guard.book.sweep(guard.now, 100) == 6
    assert len(guard.book) == 0
    assert guard.book.sweep(guard.now, 100) == 0


def test_pages_show_the_newest_first_and_miss_none(guard: Guarded) -> None:
    for number in range(7):
        guard.key = FlowKey("default", f"{number + 1:032x}")
        hop = guard.enter("", "A")
        if number % 2:
            guard.exit(hop)
        guard.now += SECOND * (number % 2)
    guard.key = FlowKey("other", "1" * 32)
    guard.enter("", "A")
    seen, after = [], None
    while True:
        page = guard.book.page("default", guard.now, open_only=False, after=after, limit=3)
        seen += [flow.key.trace_id for flow in page.flows]
        if page.next is None:
            break
        after = page.next
    assert seen == [f"{number:032x}" for number in range(7, 0, -1)]
    page = guard.book.page("default", guard.now, open_only=True, after=None, limit=10)
    assert [int(flow.key.trace_id, 16) for flow in page.flows] == [7, 5, 3, 1]


def test_every_change_is_told_in_its_order(guard: Guarded) -> None:
    a = guard.enter("", "A", reserve=1)
    guard.refused("A", "A", guard.proof(a))
    guard.book.record(guard.key, a.hop_id, 1, "", guard.now)
    b = guard.enter("A", "B")
    guard.book.cancel(guard.key, b.hop_id, guard.now)
    guard.exit(a)
    guard.now += 400 * SECOND
    guard.book.sweep(guard.now, 1)
    kind = EventKind
    assert [event.kind for event in guard.events] == [
        kind.ENTERED, kind.REFUSED, kind.RECORDED, kind.ENTERED, kind.CANCELLED, kind.EXITED, kind.FORGOTTEN,
    ]  # fmt: skip


def test_a_taken_hop_id_is_a_fault_and_changes_nothing(guard: Guarded) -> None:
    a = guard.enter("", "A")
    with pytest.raises(ValueError, match="taken"):
        guard.try_enter("A", "B", guard.proof(a), hop_id=a.hop_id)
    assert guard.flow.hops == {a.hop_id: a}


def test_copies_do_not_change(guard: Guarded) -> None:
    a = guard.enter("", "A")
    copy = guard.flow
    guard.exit(a, 5)
    assert (copy.tokens, copy.open) == (0, {a.hop_id: a})


def test_a_proof_of_a_hop_that_was_taken_back_is_unknown(guard: Guarded) -> None:
    guard.enter("", "A")
    b = guard.enter("A", "B")
    guard.book.cancel(guard.key, b.hop_id, guard.now)
    assert f"has no hop {b.hop_id}" in guard.message("B", "C", guard.proof(b))


def test_a_start_that_no_calendar_has_is_still_told() -> None:
    guard = Guarded()
    long_ago = Signed("00" * 8, (1 << 63) - 1, 0)
    guard.now = 1 << 64
    assert "started at" in guard.message("A", "B", long_ago)
    guard.now = 1 << 80
    assert "started at an unknown time" in guard.message("A", "B", long_ago._replace(start=1 << 70))


def test_limits_are_held_to_what_the_wire_can_carry() -> None:
    huge = FlowLimits(1 << 40, 1 << 40, 1 << 70, 1 << 70).bounded()
    assert (huge.max_depth, huge.max_fan_out, huge.max_tokens) == ((1 << 31) - 1, (1 << 31) - 1, MAX_TOKENS)
    assert START + huge.timeout < 1 << 63
    assert LIMITS.bounded() == LIMITS


def test_a_page_ends_early_when_its_flows_are_large() -> None:
    guard = Guarded(FlowLimits(max_fan_out=10_000))
    for number in range(1, 4):
        guard.key = FlowKey("default", f"{number:032x}")
        for _ in range(HOPS_PER_PAGE // 2 + 1):
            guard.enter("", "A")
    page = guard.book.page("default", guard.now, open_only=False, after=None, limit=3)
    assert len(page.flows) == 1
    assert page.next is not None
    assert int(page.next.trace_id, 16) == 3
