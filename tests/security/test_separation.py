"""Namespaces keep callers apart: two callers whose workers, traces or agents have the same names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import admission_pb2_grpc as rpc
from tidegate.v1 import flow_pb2, flow_pb2_grpc, selection_pb2, selection_pb2_grpc, types_pb2

from tests.integration.server.harness import Json, bearer, health, identity, quota
from tests.security.serving import ends
from tests.security.test_certificates import mutual

IDENTITIES: list[Json] = [
    {"name": "x", "role": "gateway", "commonName": "x", "namespace": "team-x", "startFlows": True},
    {"name": "y", "role": "gateway", "commonName": "y", "namespace": "team-y", "startFlows": True},
    identity("facts", "collector", providers=["qwen", "codex"]),
]
FACTS = bearer("facts-token")
PARENT = f"00-{'1234567890abcdef' * 2}-{'b' * 16}-01"


class Gateway(NamedTuple):
    """One caller's stubs."""

    admission: "rpc.AdmissionServiceAsyncStub"
    flows: "flow_pb2_grpc.FlowServiceAsyncStub"
    agents: "selection_pb2_grpc.SelectionServiceAsyncStub"


def gateway(channel: grpc.aio.Channel) -> Gateway:
    """The services over that connection."""
    return Gateway(
        rpc.AdmissionServiceStub(channel),
        flow_pb2_grpc.FlowServiceStub(channel),
        selection_pb2_grpc.SelectionServiceStub(channel),
    )


@asynccontextmanager
async def both(directory: Path, identities: list[Json]) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """A server, and the gateways x and y by their certificates."""
    async with (
        mutual(directory, identities) as at,
        at.channel(at.clients.client("x")) as x,
        at.channel(at.clients.client("y")) as y,
    ):
        yield gateway(x), gateway(y)


async def report(at: Gateway, *facts: types_pb2.Observation) -> None:
    """Facts are the same for all namespaces."""
    request = wire.ReportCapacityRequest(collector_id="c", observations=facts)
    assert not [r.reason for r in (await at.admission.ReportCapacity(request, metadata=FACTS)).results if r.reason]


def main_worker(model: str) -> wire.AdmitRequest:
    """The worker that both have."""
    return wire.AdmitRequest(model=model, worker_id="main", request_bytes=1)


async def test_two_callers_with_the_same_worker_have_two_pins(tmp_path: Path) -> None:
    async with both(tmp_path, IDENTITIES) as (x, y):
        await report(x, health())
        first = await x.admission.Admit(main_worker("managed/routine"))
        assert (first.binding.provider, first.pin_state) == ("qwen", types_pb2.PIN_STATE_NEW)
        look = wire.PinRequest(model="managed/routine", worker_id="main", mode=types_pb2.PIN_MODE_LOOKUP)
        unseen = await y.admission.Pin(look)
        assert unseen.refusal.reason == types_pb2.REFUSAL_REASON_PIN_MISSING

        await report(x, health(state=types_pb2.HEALTH_STATE_UNHEALTHY), quota("codex", 80, "5h"))
        second = await y.admission.Admit(main_worker("managed/accounts"))
        assert (second.binding.provider, second.pin_state) == ("codex", types_pb2.PIN_STATE_NEW)
        steered = await y.admission.Admit(main_worker("managed/routine"))
        assert (steered.binding.provider, steered.pin_state) == ("codex", types_pb2.PIN_STATE_NEW)
        kept = await x.admission.Pin(look)
        assert kept.pin.provider == "qwen"


async def test_flows_of_one_trace_id_in_two_namespaces_are_two_flows(tmp_path: Path) -> None:
    async with both(tmp_path, IDENTITIES) as (x, y):
        enter = flow_pb2.EnterHopRequest(traceparent=PARENT, target_agent="planner", request_id="r")
        granted = await x.flows.EnterHop(enter)
        assert granted.verdict == types_pb2.VERDICT_ADMITTED
        flow_id = PARENT.split("-")[1]
        assert await ends(y.flows.GetFlow(flow_pb2.GetFlowRequest(flow_id=flow_id))) == "NOT_FOUND"
        assert not (await y.flows.ListFlows(flow_pb2.ListFlowsRequest())).flows
        stolen: Any = flow_pb2.EnterHopRequest(
            traceparent=granted.grant.traceparent,
            tracestate=granted.grant.tracestate,
            caller_agent="planner",
            target_agent="coder",
            request_id="s",
        )
        refused = await y.flows.EnterHop(stolen)
        assert refused.refusal.reason == types_pb2.REFUSAL_REASON_FLOW_UNKNOWN
        exiting = flow_pb2.ExitHopRequest(traceparent=granted.grant.traceparent, hop_id=granted.grant.hop_id)
        await ends(y.flows.ExitHop(exiting))
        flow = (await x.flows.GetFlow(flow_pb2.GetFlowRequest(flow_id=flow_id))).flow
        assert [hop.HasField("end_time") for hop in flow.hops] == [False]


async def test_agents_of_another_namespace_are_not_there(tmp_path: Path) -> None:
    async with both(tmp_path, IDENTITIES) as (x, y):
        agent = selection_pb2.Agent(agent_id="a", name="helper", description="helps")
        await x.agents.RegisterAgent(selection_pb2.RegisterAgentRequest(agent=agent))
        assert len((await x.agents.ListAgents(selection_pb2.ListAgentsRequest())).agents) == 1
        assert not (await y.agents.ListAgents(selection_pb2.ListAgentsRequest())).agents
        ask = selection_pb2.SelectAgentRequest(query="help", session_id="s")
        assert await ends(y.agents.SelectAgent(ask)) == "NOT_FOUND"
        await ends(y.agents.DeregisterAgent(selection_pb2.DeregisterAgentRequest(agent_id="a")))
        assert len((await x.agents.ListAgents(selection_pb2.ListAgentsRequest())).agents) == 1
