"""Flows through Envoy: an agent's requests belong to its hop, and a hop lasts as long as the response."""

import json
from pathlib import Path

import httpx
from tidegate import Client
from tidegate.v1 import flow_pb2

from tests.gateways.envoy_proxy.filters import with_authenticated
from tests.gateways.envoy_proxy.support import HEALTHY, STREAM, World, until

PATH = "/v1/chat/completions"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
ASK = {"model": "managed/routine", "messages": []}


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """The error's status and code."""
    return answer.status_code, answer.json()["error"]["code"]


def test_an_agents_request_is_admitted_only_within_its_open_hop(tmp_path: Path) -> None:
    with (
        World.start(tmp_path, with_authenticated("agent")) as world,
        httpx.Client(base_url=world.url, headers={"thread-id": "t", "x-test-agent": "planner"}) as caller,
        Client(world.server.address, token_file=world.server.token) as client,
    ):
        world.report(qwen=HEALTHY)
        assert code_of(caller.post(PATH, json=ASK)) == (400, "invalid_request")  # no traceparent, and none is made up
        unknown = caller.post(PATH, json=ASK, headers={"traceparent": TRACEPARENT})
        assert code_of(unknown) == (403, "flow_unknown")
        assert unknown.headers["x-should-retry"] == "false"
        invalid = caller.post(PATH, json=ASK, headers={"traceparent": TRACEPARENT.upper()})
        assert code_of(invalid) == (400, "invalid_request")
        assert not world.calls()

        asked = flow_pb2.EnterHopRequest(traceparent=TRACEPARENT, target_agent="planner")
        grant = client.flows.enter_hop(asked).grant
        trace = {"traceparent": grant.traceparent, "tracestate": grant.tracestate}
        assert caller.post(PATH, json=ASK, headers=trace).status_code == 200
        # The trace context of an inference request is the caller's: no hop was entered.
        assert trace.items() <= world.qwen.requests[0].headers.items()
        other = caller.post(PATH, json=ASK, headers={**trace, "x-test-agent": "coder"})
        assert code_of(other) == (403, "flow_unknown")
        client.flows.exit_hop(flow_pb2.ExitHopRequest(traceparent=grant.traceparent, hop_id=grant.hop_id))
        assert code_of(caller.post(PATH, json=ASK, headers=trace)) == (403, "flow_hop_closed")
        assert len(world.qwen.requests) == 1


def test_a_hop_is_entered_with_the_admission_and_open_until_the_response_is_over(tmp_path: Path) -> None:
    document = with_authenticated("agent", "target-agent", response_headers=True)
    with (
        World.start(tmp_path, document) as world,
        httpx.Client(base_url=world.url, headers={"thread-id": "t"}) as caller,
        Client(world.server.address, token_file=world.server.token) as client,
    ):
        world.report(qwen=HEALTHY)
        headers = {"x-test-target-agent": "planner", "traceparent": TRACEPARENT, "tracestate": "other=1"}
        with caller.stream("POST", PATH, json={**ASK, "stream": True}, headers=headers) as answer:
            parts = answer.iter_raw()
            assert next(parts) == STREAM[0]
            assert answer.headers["x-gateway-upstream"] == "qwen"
            (hop,) = client.flows.get(TRACE_ID).hops
            assert (hop.target_agent, hop.depth) == ("planner", 1)
            assert not hop.HasField("end_time")
            (got,) = world.qwen.requests
            assert got.headers["traceparent"] == f"00-{TRACE_ID}-{hop.hop_id}-01"
            assert got.headers["tracestate"].startswith("tidegate=")
            assert got.headers["tracestate"].endswith(",other=1")
            inner = {name: got.headers[name] for name in ("traceparent", "tracestate")} | {"x-test-agent": "planner"}
            assert caller.post(PATH, json=ASK, headers=inner).status_code == 200
            world.qwen.go_on.set()
            assert b"".join(parts) == b"".join(STREAM[1:])
        until(lambda: client.flows.get(TRACE_ID).hops[0].HasField("end_time"))
        (hop,) = client.flows.get(TRACE_ID).hops
        assert (hop.success, hop.tokens) == (True, 0)
        assert code_of(caller.post(PATH, json=ASK, headers=inner)) == (403, "flow_hop_closed")


def test_tenants_are_told_apart_by_what_the_gateway_says(tmp_path: Path) -> None:
    with (
        World.start(tmp_path, with_authenticated("tenant")) as world,
        httpx.Client(base_url=world.url, headers={"thread-id": "one"}) as caller,
        Client(world.server.address, token_file=world.server.token) as client,
    ):
        world.report(qwen=HEALTHY)
        for tenant in ("a", "b", "a"):
            assert caller.post(PATH, content=json.dumps(ASK), headers={"x-test-tenant": tenant}).status_code == 200
        assert len(list(client.list_pins())) == 2
        assert not any("x-gateway-tenant" in request.headers for request in world.qwen.requests)
