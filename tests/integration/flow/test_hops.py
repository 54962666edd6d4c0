"""EnterHop, ExitHop and RecordTokens over the wire: signed ancestry, limits, request ids, and what is malformed."""

import asyncio
from typing import Any

import grpc
import pytest
from tidegate.v1 import flow_pb2
from tidegate_server.core.flow.ancestry import Keyring
from tidegate_server.core.flow.model import MAX_TOKENS, FlowLimits, FlowSettings
from tidegate_server.core.flow.tracecontext import parse_traceparent
from tidegate_server.core.model import SECOND
from tidegate_server.rpc.flow_mapping import trace_context

from tests.integration.flow.serving import ADMITTED, START, TRACE, Served, bearer, carried, code, rejected


async def test_a_chain_of_hops_is_followed_by_its_signed_ancestry(served: Served) -> None:
    a = await served.grant("", "A", tracestate="rojo=1,congo=2")
    assert (a.flow_id, a.depth, list(a.chain)) == (TRACE, 1, ["A"])
    assert a.traceparent == f"00-{TRACE}-{a.hop_id}-01"
    assert [member.split("=")[0] for member in a.tracestate.split(",")] == ["tidegate", "rojo", "congo"]
    b = await served.grant("A", "B", a)
    assert (b.depth, list(b.chain)) == (2, ["A", "B"])
    assert b.tracestate.split(",")[1:] == ["rojo=1", "congo=2"]
    left = b.remaining
    assert (left.depth, left.fan_out, left.tokens, left.time.seconds) == (3, 18, 100_000, 120)


async def test_case_52_a_b_c_a_is_refused_with_its_path_and_a_b_again_is_not(served: Served) -> None:
    a = await served.grant("", "A")
    b = await served.grant("A", "B", a)
    c = await served.grant("B", "C", b)
    answer = await served.enter("C", "A", c)
    assert code(answer) == "flow_cycle_detected"
    assert "A → B → C → A" in answer.refusal.message
    assert (answer.refusal.http_status, answer.refusal.retryable) == (403, False)
    for hop in (c, b):
        assert (await served.exit(hop)).closed
    assert (await served.grant("A", "B", a)).depth == 2


async def test_case_52_an_agent_cannot_reset_its_depth(served: Served) -> None:
    hop = await served.grant("", "1")
    for depth in range(2, 6):
        hop = await served.grant(str(depth - 1), str(depth), hop)
    assert await served.refusal("5", "6", hop) == "flow_depth_exceeded"
    assert await served.refusal("5", "6", hop, tracestate="") == "flow_depth_exceeded"
    assert await served.refusal("5", "6", hop, traceparent=START, tracestate="") == "flow_depth_exceeded"


async def test_case_51_the_refusal_tells_flow_start_and_trace_id(served: Served) -> None:
    await served.grant("", "A")
    await served.clock.advance(121 * SECOND)
    answer = await served.enter("", "A")
    assert code(answer) == "flow_timeout"
    assert TRACE in answer.refusal.message
    assert "2026-10-20T12:00:00Z" in answer.refusal.message


async def test_a_member_of_another_agent_flow_namespace_or_key_proves_nothing(served: Served) -> None:
    a = await served.grant("", "A")
    b = await served.grant("A", "B", a)
    other_trace = "1" * 32
    await served.grant("", "A", traceparent=f"00-{other_trace}-00f067aa0ba902b7-01")
    flipped = a.tracestate[:-1] + ("A" if a.tracestate[-1] != "A" else "B")
    for forged in (
        {"tracestate": b.tracestate},
        {"tracestate": flipped},
        {"tracestate": a.tracestate[:-4]},
        {"tracestate": f"{a.tracestate},{a.tracestate}"},
        {"tracestate": "tidegate=" + "x" * 10_000},
        {"tracestate": "tidegate="},
        {"traceparent": f"00-{other_trace}-{a.hop_id}-01"},
    ):
        assert await served.refusal("A", "C", a, **forged) == "flow_unknown", forged
    assert (await served.grant("A", "C", a, tracestate=f" rojo=1 , {a.tracestate}")).depth == 2
    request = flow_pb2.EnterHopRequest(**carried(a), caller_agent="A", target_agent="B")
    assert code(await served.flows.EnterHop(request, metadata=bearer("other"))) == "flow_unknown"
    served.keyring = Keyring((b"n" * 32,))
    assert await served.refusal("A", "C", a) == "flow_unknown"


async def test_without_a_caller_a_member_is_ignored_and_replaced(served: Served) -> None:
    a = await served.grant("", "A", tracestate="rojo=1,tidegate=forged")
    assert a.tracestate.count("tidegate=") == 1
    assert (await served.grant("", "B", a)).depth == 1


async def test_keys_rotate_without_a_gap(served: Served) -> None:
    a = await served.grant("", "A")
    served.keyring = Keyring((b"n" * 32, *served.keyring.keys))
    b = await served.grant("A", "B", a)
    served.keyring = Keyring((b"n" * 32,))
    assert (await served.grant("B", "C", b)).depth == 3
    assert await served.refusal("A", "C", a) == "flow_unknown"


async def test_namespaces_are_apart(served: Served) -> None:
    await served.grant("", "A")
    other = await served.grant("", "X", metadata=bearer("other"))
    assert list(other.chain) == ["X"]
    error = await rejected(served.flows.GetFlow(flow_pb2.GetFlowRequest(flow_id="2" * 32)))
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "FLOW_NOT_FOUND")
    flow = (await served.flows.GetFlow(flow_pb2.GetFlowRequest(flow_id=TRACE), metadata=bearer("other"))).flow
    assert flow.root_agent == "X"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"traceparent": ""}, ["traceparent"]),
        ({"traceparent": START.upper()}, ["traceparent"]),
        ({"traceparent": f"ff-{TRACE}-00f067aa0ba902b7-01"}, ["traceparent"]),
        ({"target_agent": ""}, ["target_agent"]),
        ({"target_agent": " "}, ["target_agent"]),
        ({"caller_agent": "a\x00b"}, ["caller_agent"]),
        ({"caller_agent": "a" * 257}, ["caller_agent"]),
        ({"reserve_tokens": -10}, ["reserve_tokens"]),
        ({"request_id": "\n"}, ["request_id"]),
        ({"profile": "unheard-of"}, ["profile"]),
        (
            {"traceparent": "x", "target_agent": "", "reserve_tokens": -1},
            ["traceparent", "target_agent", "reserve_tokens"],
        ),
    ],
)
async def test_a_malformed_hop_names_each_field_and_leaves_nothing(
    served: Served, fields: dict[str, Any], named: list[str]
) -> None:
    request = {"traceparent": START, "target_agent": "A", **fields}
    error = await rejected(served.flows.EnterHop(flow_pb2.EnterHopRequest(**request)))
    assert (error.code, error.reason, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", named)
    assert not (await served.flows.ListFlows(flow_pb2.ListFlowsRequest())).flows


async def test_only_an_identity_that_may_starts_flows(served: Served) -> None:
    request = flow_pb2.EnterHopRequest(traceparent=START, target_agent="A")
    error = await rejected(served.flows.EnterHop(request, metadata=bearer("child-only")))
    assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "FLOW_START_NOT_ALLOWED")
    a = await served.grant("", "A")
    request = flow_pb2.EnterHopRequest(**carried(a), caller_agent="A", target_agent="B")
    assert (await served.flows.EnterHop(request, metadata=bearer("child-only"))).verdict == ADMITTED


async def test_the_message_wins_over_the_metadata_and_takes_both_headers(served: Served) -> None:
    a = await served.grant("", "A")
    metadata = tuple((key, value) for key, value in carried(a).items())
    b = await served.flows.EnterHop(flow_pb2.EnterHopRequest(caller_agent="A", target_agent="B"), metadata=metadata)
    assert list(b.grant.chain) == ["A", "B"]
    mine = (("traceparent", START), ("tracestate", "rojo=1"))
    request = flow_pb2.EnterHopRequest(traceparent=a.traceparent, caller_agent="A", target_agent="C")
    c = await served.flows.EnterHop(request, metadata=mine)
    assert (c.grant.flow_id, c.grant.tracestate.count("rojo")) == (TRACE, 0)
    twice = (("traceparent", START), ("traceparent", START))
    # gRPC itself keeps one traceparent of several; another transport may not, and then there is none that counts.
    assert parse_traceparent(trace_context("", "", twice).traceparent) == parse_traceparent(f"{START},{START}")
    assert isinstance(parse_traceparent(f"{START},{START}"), str)
    joined = (("traceparent", START), ("tracestate", "rojo=1"), ("tracestate", "congo=2"))
    d = await served.flows.EnterHop(flow_pb2.EnterHopRequest(target_agent="D"), metadata=joined)
    assert d.grant.tracestate.split(",")[1:] == ["rojo=1", "congo=2"]


async def test_a_repeated_request_is_the_same_grant_and_another_use_is_malformed(served: Served) -> None:
    a = await served.grant("", "A", request_id="r1", reserve_tokens=10)
    await served.clock.advance(SECOND)
    assert await served.grant("", "A", request_id="r1", reserve_tokens=10) == a
    assert (await served.flow()).tokens == 10
    request = flow_pb2.EnterHopRequest(traceparent=START, target_agent="B", request_id="r1")
    error = await rejected(served.flows.EnterHop(request))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["request_id"])
    await served.exit(a)
    assert await served.refusal("", "A", request_id="r1") == "flow_hop_closed"


async def test_a_profile_gives_a_flow_its_limits_for_good(served: Served) -> None:
    a = await served.grant("", "A", profile="coding", reserve_tokens=1_000_000)
    served.settings = FlowSettings({"": FlowLimits(max_tokens=5)})
    b = await served.grant("A", "B", a, reserve_tokens=1_000_000)
    assert (b.remaining.tokens, b.remaining.time.seconds) == (3_000_000, 1_800)


async def test_200_at_once_and_one_place_left(served: Served) -> None:
    served.settings = FlowSettings({"": FlowLimits(max_fan_out=2)})
    a = await served.grant("", "A")
    answers = await asyncio.gather(*(served.enter("A", f"B{n}", a) for n in range(200)))
    assert sum(answer.verdict == ADMITTED for answer in answers) == 1
    flow = await served.flow()
    assert (flow.invocations, flow.refusals, flow.open_hops) == (2, 199, 2)


async def test_case_53_200_at_once_and_the_last_tokens(served: Served) -> None:
    served.settings = FlowSettings({"": FlowLimits(max_tokens=100, max_fan_out=1_000)})
    a = await served.grant("", "A")
    await served.flows.RecordTokens(flow_pb2.RecordTokensRequest(**carried(a), hop_id=a.hop_id, tokens=95))
    answers = await asyncio.gather(*(served.enter("A", "B", a, reserve_tokens=3) for _ in range(200)))
    granted = [answer.grant for answer in answers if answer.verdict == ADMITTED]
    assert len(granted) == 1
    assert (await served.flow()).tokens == 98
    assert (await served.exit(granted[0], 1)).remaining.tokens == 4


async def test_tokens_are_settled_at_the_exit_and_the_exit_closes_once(served: Served) -> None:
    a = await served.grant("", "A", reserve_tokens=500)
    record = flow_pb2.RecordTokensRequest(**carried(a), hop_id=a.hop_id, tokens=100, request_id="t")
    for _ in range(2):
        told = await served.flows.RecordTokens(record)
        assert (told.used, told.remaining, told.exhausted, told.hop_open) == (500, 99_500, False, True)
    first = await served.exit(a, 20)
    assert (first.closed, first.remaining.tokens) == (True, 99_880)
    again = await served.exit(a, 20)
    assert (again.closed, again.remaining.tokens) == (False, 99_880)
    late = await served.flows.RecordTokens(
        flow_pb2.RecordTokensRequest(**carried(a), hop_id=a.hop_id, tokens=MAX_TOKENS)
    )
    assert (late.used, late.remaining, late.exhausted, late.hop_open) == (MAX_TOKENS, 0, True, False)


@pytest.mark.parametrize("call", ["ExitHop", "RecordTokens"])
async def test_a_settlement_that_names_nothing_or_less_than_nothing(served: Served, call: str) -> None:
    a = await served.grant("", "A")
    kind: Any = getattr(flow_pb2, f"{call}Request")
    method: Any = getattr(served.flows, call)
    for fields, reason in (
        ({"hop_id": a.hop_id, "tokens": -10}, "INVALID_REQUEST"),
        ({"hop_id": ""}, "INVALID_REQUEST"),
        ({"hop_id": "0001"}, "HOP_NOT_FOUND"),
        ({"hop_id": a.hop_id, "traceparent": f"00-{'1' * 32}-{a.hop_id}-01"}, "FLOW_NOT_FOUND"),
        ({"hop_id": a.hop_id, "traceparent": "garbage"}, "INVALID_REQUEST"),
    ):
        error = await rejected(method(kind(**{**carried(a), **fields})))
        assert error.reason == reason, fields
    assert (await served.flow()).tokens == 0


async def test_refusals_of_hops_are_written_to_the_decision_log(served: Served) -> None:
    a = await served.grant("", "A")
    await served.refusal("A", "A", a)
    (record,) = served.log.records
    assert (record.kind, record.subject, record.reason) == ("hop", TRACE, "FLOW_CYCLE_DETECTED")
    assert '"caller_agent": "A"' in record.detail
