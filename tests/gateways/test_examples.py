"""The example gateways with a real Tidegate and a provider on loopback: what goes out, and what never does."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from google.protobuf import duration_pb2
from tidegate import Client
from tidegate.v1 import types_pb2

from tests.conformance.scripted import serving
from tests.conformance.test_answers import differing, document
from tests.gateways.processes import GATEWAYS, Provider, Served, gateway, provider, tidegate

CONFIG = {
    "coldWait": "0.1s",
    "providers": {
        "qwen": {
            "kind": "local",
            "credential": "none",
            "sessionAffinity": True,
            "models": {"qwen-next": {"contextWindow": 131072, "reasoningEfforts": ["low", "high"]}},
        }
    },
    "managedRouting": {
        "routes": {
            "managed/routine": {
                "purpose": "routine",
                "candidates": ["qwen/qwen-next"],
                "contextWindow": 32768,
                "maxContextBytes": 2000,
                "candidateReasoningEfforts": {"qwen/qwen-next": "low"},
            }
        }
    },
}
TRACE = "00-{:032x}-00f067aa0ba902b7-01"


class World(NamedTuple):
    """A gateway between a caller, Tidegate, a provider and two agents."""

    server: Served
    provider: Provider
    agent: Provider
    caller: httpx.Client

    def report(self, state: types_pb2.HealthState.ValueType) -> None:
        """Tell Tidegate how the engine is."""
        sample = types_pb2.Observation(
            provider="qwen", age=duration_pb2.Duration(), health=types_pb2.Health(state=state)
        )
        with Client(self.server.address, token_file=self.server.token) as client:
            client.report_capacity("tests", [sample])

    def ask(
        self, body: bytes = b"", worker: str = "thread-1", path: str = "/v1/chat/completions", **headers: str
    ) -> Any:
        """A request of the gateway's caller."""
        content = body or b'{"model":"managed/routine","messages":[]}'
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.caller.post(path, content=content, headers={"x-session-id": worker, **named})


@pytest.fixture(params=GATEWAYS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Everything, started."""
    with tidegate(CONFIG, tmp_path) as server, provider() as engine, provider() as agent:
        agents = [f"{name}=key-{name}@{agent.url}" for name in ("planner", "coder")]
        options: dict[str, Any] = {"token": server.token, "upstreams": {"qwen": engine.url}, "agents": agents}
        with gateway(request.param, server.address, tmp_path, **options) as url, httpx.Client(base_url=url) as caller:
            yield World(server, engine, agent, caller)


def test_what_is_admitted_goes_out_with_the_models_name_changed_and_not_one_byte_more(world: World) -> None:
    world.report(types_pb2.HEALTH_STATE_HEALTHY)
    messages = '[{"content": "„model“: \\"x\\", 待機 {[\\\\"}]'
    body = f'{{"messages": {messages}, "n":1.0e2,  "model" : "managed\\/routine","z":null}}\n'
    answer = world.ask(body.encode(), x_gateway_upstream="claude", authorization="Bearer theirs")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"id": "answer-1"}
    (got,) = world.provider.requests
    sent = got.body.decode()
    changed = sent.replace('{"reasoning_effort": "low", ', "{").replace('"qwen-next"', '"managed\\/routine"')
    assert changed == body
    assert json.loads(sent)["model"] == "qwen-next"
    assert json.loads(sent)["reasoning_effort"] == "low"
    for headers in (got.headers, answer.headers):
        assert headers["x-gateway-upstream"] == "qwen"
        assert headers["x-gateway-upstream-model"] == "qwen-next"
        assert headers["x-gateway-managed-route"] == "managed/routine"
        assert headers["x-session-id"] == "thread-1"
    assert "authorization" not in got.headers


def test_a_stream_comes_back_as_it_is_made(world: World) -> None:
    world.report(types_pb2.HEALTH_STATE_HEALTHY)
    body = b'{"model":"managed/routine","stream":true}'
    with world.caller.stream("POST", "/v1/chat/completions", content=body, headers={"x-session-id": "s"}) as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"data: one\n\n"  # while the provider still holds back the rest
        world.provider.go_on.set()
        assert b"".join(parts) == b"data: two\n\n"


@pytest.mark.parametrize(
    ("body", "worker", "status", "code"),
    [
        (b'{"model":"managed/rutine"}', "w", 404, "model_not_found"),
        (b'{"model":"managed/routine"}', "", 400, "invalid_request"),
        (b'{"model":"managed/routine","pad":"' + b"x" * 2000 + b'"}', "w", 400, "context_length_exceeded"),
        (b'{"model":"managed/routine","model":"qwen-next"}', "w", 400, "invalid_json"),
        (b'{"model":"managed/routine"', "w", 400, "invalid_json"),
        (b'{"model":"managed/routine"}}', "w", 400, "invalid_json"),
        (b'["managed/routine"]', "w", 400, "invalid_json"),
        (b'{"model":17}', "w", 404, "model_not_found"),
    ],
)
def test_what_is_wrong_is_told_and_never_goes_out(
    world: World, body: bytes, worker: str, status: int, code: str
) -> None:
    world.report(types_pb2.HEALTH_STATE_HEALTHY)
    answer = world.ask(body, worker)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"
    assert not world.provider.requests


def test_no_fact_no_capacity_no_server_no_call(world: World) -> None:
    unknown = world.ask()
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (429, "capacity_unknown")
    world.report(types_pb2.HEALTH_STATE_UNHEALTHY)
    unhealthy = world.ask()
    assert (unhealthy.status_code, unhealthy.json()["error"]["code"]) == (429, "no_eligible_candidate")
    world.server.stop()
    gone = world.ask()
    assert (gone.status_code, gone.json()["error"]["code"]) == (503, "admission_unavailable")
    for answer in (unknown, unhealthy, gone):
        assert answer.headers["x-should-retry"] == "true"
    assert not world.provider.requests


def test_an_upstream_that_is_not_there_is_not_replaced_by_another(world: World) -> None:
    world.report(types_pb2.HEALTH_STATE_HEALTHY)
    world.provider.close()
    answer = world.ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert answer.headers["x-should-retry"] == "false"


def test_a_hop_carries_its_trace_to_the_agent_and_back_into_admission(world: World) -> None:
    world.report(types_pb2.HEALTH_STATE_HEALTHY)
    body = b'{"model":"managed/routine"}'
    assert world.ask(b"{}", path="/agents/planner", traceparent=TRACE.format(1)).status_code == 200
    first = trace_of(world.agent)
    assert "tidegate=" in first["tracestate"]
    # The planner's hop is over: whatever it still calls is refused, the model as well as another agent.
    late = world.ask(body, authorization="Bearer key-planner", **first)
    assert (late.status_code, late.json()["error"]["code"]) == (403, "flow_hop_closed")
    late = world.ask(b"{}", path="/agents/coder", authorization="Bearer key-planner", **first)
    assert (late.status_code, late.json()["error"]["code"]) == (403, "flow_hop_closed")
    assert len(world.agent.requests) == 1
    assert not world.provider.requests


def test_a_cycle_is_refused_before_the_agent_is_called(world: World) -> None:
    stream = b'{"stream":true}'  # an agent that is still at work
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(world.ask, stream, path="/agents/planner", traceparent=TRACE.format(2))]
        planner = trace_of(world.agent)
        key = "Bearer key-planner"
        busy.append(pool.submit(world.ask, stream, path="/agents/coder", authorization=key, **planner))
        coder = trace_of(world.agent, 2)
        again = world.ask(b"{}", path="/agents/planner", authorization="Bearer key-coder", **coder)
        assert (again.status_code, again.json()["error"]["code"]) == (403, "flow_cycle_detected")
        world.report(types_pb2.HEALTH_STATE_HEALTHY)
        assert world.ask(authorization="Bearer key-coder", **coder).status_code == 200
        world.agent.go_on.set()
        assert [each.result().status_code for each in busy] == [200, 200]
    assert len(world.agent.requests) == 2


@pytest.mark.parametrize("name", ["fail-closed", "answers-to-the-caller"])
@pytest.mark.parametrize("kind", GATEWAYS)
def test_every_answer_that_a_server_could_give(kind: str, name: str, tmp_path: Path) -> None:
    """The client vectors, seen from outside: what the provider gets and what the caller is told."""
    failures = []
    with ExitStack() as stack:
        address, script = stack.enter_context(serving())
        engine = stack.enter_context(provider())
        options: dict[str, Any] = {"timeout": 1500, "upstreams": {"qwen": engine.url}}
        url = stack.enter_context(gateway(kind, address, tmp_path, **options))
        for case in document(name)["cases"]:
            if "request" in case or "nobody" in case["answers"][0]:
                continue  # the gateway makes its own request; a server that is gone is tested above
            script.play(case["answers"])
            engine.requests.clear()
            body = b'{"model":"managed/routine"}'
            got = httpx.post(f"{url}/v1/chat/completions", content=body, headers={"x-session-id": "w"}, timeout=30)
            said = {"forwarded": len(engine.requests), "http": http_of(got)}
            expect = {"forwarded": int(case["expect"]["forward"])}
            if "http" in case["expect"]:
                expect["http"] = case["expect"]["http"]
            failures += differing(said, expect, case["name"])
            if got.is_success != case["expect"]["forward"]:
                failures.append(f"{case['name']}: {got.status_code}")
    assert not failures, "\n".join(failures)


def http_of(answer: httpx.Response) -> dict[str, Any]:
    """The answer as the vectors write it."""
    return {"status": answer.status_code, "headers": dict(answer.headers), "body": answer.json()}


def trace_of(agent: Provider, count: int = 1) -> dict[str, Any]:
    """The trace context that the agent's newest request carries, once it has had so many."""
    headers = agent.wait_for(count).headers
    return {name: headers[name] for name in ("traceparent", "tracestate")}
