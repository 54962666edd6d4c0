"""Admit with `hop` and with `flow` (§8 and §4.1 of the contract)."""

from typing import Any

import grpc
import pytest
from tidegate.v1 import flow_pb2, types_pb2
from tidegate_server.core.flow.model import FlowLimits, FlowSettings
from tidegate_server.core.model import SECOND

from tests.integration.flow.serving import ADMITTED, START, Served, carried, code, rejected


def hop(caller: str, target: str, within: flow_pb2.HopGrant | None = None, **fields: Any) -> flow_pb2.EnterHopRequest:
    context = {"traceparent": START} if within is None else carried(within)
    return flow_pb2.EnterHopRequest(**{**context, "caller_agent": caller, "target_agent": target, **fields})


def place(grant: flow_pb2.HopGrant, agent: str) -> flow_pb2.FlowCheck:
    return flow_pb2.FlowCheck(**carried(grant), agent=agent)


@pytest.fixture(autouse=True)
async def engine(served: Served) -> None:
    await served.healthy_engine()


async def test_a_hop_is_entered_with_the_admission(served: Served) -> None:
    answer = await served.admit("managed/guarded", hop=hop("", "A", reserve_tokens=7))
    assert answer.verdict == ADMITTED
    assert (answer.hop.depth, list(answer.hop.chain)) == (1, ["A"])
    child = await served.admit("managed/guarded", hop=hop("A", "B", answer.hop))
    assert (child.hop.depth, child.pin_state) == (2, types_pb2.PIN_STATE_EXISTING)
    assert (await served.flow()).tokens == 7


async def test_an_explicit_model_is_guarded_too(served: Served) -> None:
    answer = await served.admit("qwen-next", hop=hop("", "A"))
    assert (answer.verdict, answer.hop.depth) == (types_pb2.VERDICT_BYPASSED, 1)
    refused = await served.admit("qwen-next", hop=hop("A", "A", answer.hop))
    assert code(refused) == "flow_cycle_detected"
    assert not refused.HasField("binding")


async def test_a_route_that_requires_a_flow_refuses_without_one(served: Served) -> None:
    refused = await served.admit("managed/guarded")
    assert (code(refused), refused.refusal.http_status) == ("flow_required", 400)
    assert (await served.admit("managed/free")).verdict == ADMITTED


async def test_a_refused_hop_binds_nothing_and_a_refused_admission_charges_nothing(served: Served) -> None:
    a = await served.grant("", "A")
    assert code(await served.admit(worker="new", hop=hop("A", "A", a))) == "flow_cycle_detected"
    assert code(await served.admit(worker="new", require_pin=True, hop=hop("A", "B", a))) == "pin_missing"
    await served.clock.advance(16 * SECOND)
    assert code(await served.admit(worker="new", hop=hop("A", "B", a))) == "capacity_unknown"
    flow = await served.flow()
    assert (flow.invocations, flow.refusals) == (1, 1)


async def test_an_inference_request_is_checked_and_not_charged(served: Served) -> None:
    served.settings = FlowSettings({"": FlowLimits(max_tokens=100)})
    a = await served.grant("", "A", reserve_tokens=100)
    for _ in range(3):
        assert (await served.admit("managed/guarded", flow=place(a, "A"))).verdict == ADMITTED
    assert code(await served.admit("managed/guarded", flow=place(a, "B"))) == "flow_unknown"
    assert (await served.flow()).invocations == 1
    await served.flows.RecordTokens(flow_pb2.RecordTokensRequest(**carried(a), hop_id=a.hop_id, tokens=100))
    assert code(await served.admit("managed/guarded", flow=place(a, "A"))) == "flow_tokens_exhausted"
    await served.exit(a)
    assert code(await served.admit("managed/guarded", flow=place(a, "A"))) == "flow_hop_closed"
    await served.clock.advance(121 * SECOND)
    await served.healthy_engine()
    assert code(await served.admit("managed/guarded", flow=place(a, "A"))) == "flow_timeout"


async def test_a_dry_run_says_the_same_and_leaves_nothing(served: Served) -> None:
    assert (await served.admit(hop=hop("", "A"), dry_run=True)).verdict == ADMITTED
    assert not (await served.flows.ListFlows(flow_pb2.ListFlowsRequest())).flows
    a = await served.grant("", "A")
    assert code(await served.admit(hop=hop("A", "A", a), dry_run=True)) == "flow_cycle_detected"
    assert (await served.flow()).refusals == 0


async def test_the_hop_is_given_back_when_the_pin_cannot_be_stored(served: Served, monkeypatch: Any) -> None:
    async def full(pin: Any) -> Any:
        raise OSError("disk full")

    a = await served.grant("", "A")
    with monkeypatch.context() as patch:
        patch.setattr(served.pins, "create", full)
        error = await rejected(served.admit(worker="new", hop=hop("A", "B", a, reserve_tokens=5)))
        assert error.code == grpc.StatusCode.INTERNAL
    flow = await served.flow()
    assert (flow.invocations, flow.tokens) == (1, 0)


async def test_what_is_malformed_is_named_by_its_path(served: Served) -> None:
    error = await rejected(served.admit(hop=hop("", "", traceparent="x", reserve_tokens=-1)))
    assert error.fields == ["hop.traceparent", "hop.target_agent", "hop.reserve_tokens"]
    error = await rejected(served.admit(flow=flow_pb2.FlowCheck(traceparent=START)))
    assert error.fields == ["flow.agent"]
    await served.admit(hop=hop("", "A", request_id="r"))
    error = await rejected(served.admit(worker="w2", hop=hop("", "B", request_id="r")))
    assert error.fields == ["hop.request_id"]
