"""The example with a real Envoy: what goes out, byte for byte, and what never does."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import duration_pb2, timestamp_pb2
from tidegate import Client
from tidegate.v1 import types_pb2

from tests.gateways.envoy_proxy.filters import processing
from tests.gateways.envoy_proxy.support import HEALTHY, MIB, STREAM, UNHEALTHY, World, example

PATH = "/v1/chat/completions"
ASK = b'{"model":"managed/routine","messages":[]}'
BUDGET = 262144


def of_gateway(headers: Any) -> dict[str, str]:
    """Those that a decision gives."""
    return {name: value for name, value in headers.items() if name.startswith(("x-gateway", "x-session"))}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error in OpenAI's style, with the fields that SDKs read."""
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_what_is_admitted_goes_out_with_the_models_value_changed_and_not_one_byte_more(
    world: World, caller: httpx.Client
) -> None:
    world.report(qwen=HEALTHY)
    body = (
        '{"messages": [{"content": "„model“: \\"x\\", 待機 {[\\\\"}], "n":1.0e2,  '
        '"mod\\u0065l" : "managed\\/routine","z":null}\n'
    )
    headers = {"x-session-id": "thread-1", "authorization": "Bearer theirs", "x-tidegate-compaction": "false"}
    answer = caller.post(PATH, content=body.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    (got,) = world.qwen.requests
    assert got.path == PATH
    assert got.body.decode() == body.replace('"managed\\/routine"', '"qwen3.8-flash-next"')
    assert got.headers["content-length"] == str(len(got.body))
    assert "authorization" not in got.headers
    assert "x-tidegate-compaction" not in got.headers
    for shown in (got.headers, answer.headers):
        assert of_gateway(shown) == {
            "x-gateway-upstream": "qwen",
            "x-gateway-upstream-model": "qwen3.8-flash-next",
            "x-gateway-managed-route": "managed/routine",
            "x-gateway-managed-candidate": "qwen/qwen3.8-flash-next",
            "x-session-id": "thread-1",
        }


def test_a_mapped_effort_is_written_into_the_body_and_told(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)
    for path, before, after in (
        (PATH, b'"messages":[],"reasoning_effort":"low"', b'"messages":[],"reasoning_effort":"xhigh"'),
        ("/v1/responses", b'"input":"a","reasoning":{"effort":"low"}', b'"input":"a","reasoning":{"effort":"xhigh"}'),
    ):
        sent = b'{"model": "managed/implement",%s}' % before
        answer = caller.post(path, content=sent, headers={"thread-id": "t"})
        assert answer.headers["x-gateway-managed-reasoning-effort"] == "xhigh"
        got = world.qwen.requests[-1]
        assert got.headers["x-gateway-managed-reasoning-effort"] == "xhigh"
        assert got.body == b'{"model": "qwen3.8-flash-next",%s}' % after


def test_an_explicit_model_goes_to_its_provider_under_its_own_name(world: World, caller: httpx.Client) -> None:
    answer = caller.post(PATH, content=b'{"model":"gemma/gemma-4-31b"}', headers={"x-session-id": "s"})
    assert answer.status_code == 200
    (got,) = world.gemma.requests
    assert got.body == b'{"model":"gemma-4-31b"}'
    # The provider has no session affinity: the caller's session is none of its business.
    assert of_gateway(got.headers) == {"x-gateway-upstream": "gemma", "x-gateway-upstream-model": "gemma-4-31b"}


def test_nothing_that_a_caller_says_in_our_headers_counts(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)
    forged = {
        "x-gateway-upstream": "gemma", "X-Gateway-Model": "gemma/gemma-4-31b", "x-gateway-agent": "planner",
        "x-gateway-target-agent": "coder", "x-gateway-tenant": "other", "thread-id": "t",
    }  # fmt: skip
    assert caller.post(PATH, content=ASK, headers=forged).status_code == 200
    (got,) = world.qwen.requests
    assert of_gateway(got.headers)["x-gateway-upstream"] == "qwen"
    assert not {"x-gateway-model", "x-gateway-agent", "x-gateway-target-agent", "x-gateway-tenant"} & set(got.headers)
    world.report(qwen=UNHEALTHY)
    refused = caller.post(PATH, content=ASK, headers=forged)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "pin_provider_unavailable")
    assert caller.get("/v1/files", headers=forged).status_code == 400
    assert world.calls() == 1


def padded(size: int, model: str = "managed/routine") -> bytes:
    """A request of exactly this many bytes."""
    head, tail = b'{"model":"%s","messages":[{"content":"' % model.encode(), b'"}]}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"", {}, 400, "invalid_json"),
        (b"hello", {}, 400, "invalid_json"),
        (gzip.compress(ASK), {"content-encoding": "gzip"}, 400, "invalid_json"),
        (b'{"model":"managed/routine"', {}, 400, "invalid_json"),
        (b'{"model":"managed/routine"}}', {}, 400, "invalid_json"),
        (b'["managed/routine"]', {}, 400, "invalid_json"),
        (b'{"model":"managed/routine","model":"gemma-4-31b"}', {}, 400, "invalid_json"),
        (b'{"model":17}', {}, 400, "invalid_json"),
        (b'{"messages":[]}', {}, 400, "invalid_json"),
        (b'{"model":"managed/rutine"}', {}, 404, "model_not_found"),
        (b'{"model":"managed/r\\ud800"}', {}, 400, "invalid_json"),
        (ASK, {"thread-id": ""}, 400, "invalid_request"),
        (ASK, {"thread-id": "w" * 257}, 400, "invalid_request"),
        (ASK, {"x-tidegate-compaction": "perhaps"}, 400, "invalid_request"),
        (ASK, {"x-tidegate-compaction": "true"}, 400, "compaction_requires_pin"),
        (ASK, {"x-tidegate-require-pin": "true"}, 410, "pin_missing"),
        (ASK, {"x-tidegate-provider-state": "qwen"}, 400, "opaque_state_requires_pin"),
        (b'{"model":"managed/routine","previous_response_id":"r"}', {}, 400, "opaque_state_requires_pin"),
        (b'{"model":"managed/routine","input":[{"content":[{"type":"image"}]}]}', {}, 400, "modality_unsupported"),
        (b'{"model":"managed/routine","reasoning_effort":"extreme"}', {}, 400, "effort_unsupported"),
        (padded(BUDGET + 1), {}, 400, "context_length_exceeded"),
        (f'{{"model":"managed/routine","a":"{"漢" * (BUDGET // 3)}"}}'.encode(), {}, 400, "context_length_exceeded"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_is_not_retried_and_never_goes_out(
    world_of_module: World, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    world = world_of_module
    world.report(qwen=HEALTHY)
    answer = httpx.post(world.url + PATH, content=content, headers={"thread-id": "never-bound", **headers}, timeout=30)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code), answer.text
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert not world.calls()


@pytest.fixture(scope="module")
def world_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for the tests in which nothing ever goes out."""
    with World.start(Path(tmp_path_factory.mktemp("world"))) as started:
        yield started


def test_refusals_say_when_to_come_again(world: World, caller: httpx.Client) -> None:
    unknown = caller.post(PATH, content=ASK, headers={"thread-id": "t"})
    assert (unknown.status_code, error_of(unknown)["code"]) == (429, "capacity_unknown")
    assert error_of(unknown)["type"] == "rate_limit_error"
    assert unknown.headers["x-should-retry"] == "true"
    assert "retry-after" not in unknown.headers
    world.report(qwen=HEALTHY, gemma=HEALTHY)
    until = timestamp_pb2.Timestamp()
    until.GetCurrentTime()
    until.seconds += 40
    blocked = types_pb2.Availability(
        state=types_pb2.AVAILABILITY_STATE_BLOCKED, blocker=types_pb2.BLOCKER_RATE_LIMITED, until_time=until
    )
    rows = [
        types_pb2.Observation(provider=name, age=duration_pb2.Duration(), availability=blocked)
        for name in ("qwen", "gemma")
    ]
    with Client(world.server.address, token_file=world.server.token) as client:
        client.report_capacity("tests", rows)
    busy = caller.post(PATH, content=ASK, headers={"thread-id": "t"})
    assert (busy.status_code, error_of(busy)["code"]) == (429, "no_eligible_candidate")
    assert 30 <= int(busy.headers["retry-after"]) <= 41
    assert not world.calls()


def test_a_body_may_have_eight_mebibytes_and_no_more(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)
    largest = padded(8 * MIB, "managed/implement")
    answer = caller.post(PATH, content=largest, headers={"thread-id": "t"})
    assert answer.status_code == 200, answer.text
    (got,) = world.qwen.requests
    expected = largest.replace(b'"managed/implement"', b'"qwen3.8-flash-next"')
    assert got.body == b'{"reasoning_effort": "xhigh", ' + expected[1:]
    for more, status, code in ((1, 400, "context_length_exceeded"), (80 << 10, 413, "request_too_large")):
        over = caller.post(PATH, content=largest + b" " * more, headers={"thread-id": "t"})
        assert (over.status_code, error_of(over)["code"]) == (status, code)
        assert over.headers["x-should-retry"] == "false"
    assert world.calls() == 1


def test_a_body_of_unknown_length_is_counted_when_it_is_whole(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)

    def chunks(size: int) -> Iterator[bytes]:
        body = padded(size)
        yield from (body[at : at + 50_000] for at in range(0, size, 50_000))

    assert caller.post(PATH, content=chunks(BUDGET), headers={"thread-id": "t"}).status_code == 200
    assert world.qwen.requests[0].body == padded(BUDGET).replace(b"managed/routine", b"qwen3.8-flash-next")
    over = caller.post(PATH, content=chunks(BUDGET + 1), headers={"thread-id": "t"})
    assert error_of(over)["code"] == "context_length_exceeded"
    assert world.calls() == 1


def test_a_stream_comes_back_untouched_and_as_it_is_made(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)
    content = json.dumps({"model": "managed/routine", "stream": True}).encode()
    with caller.stream("POST", PATH, content=content, headers={"thread-id": "t"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        parts = answer.iter_raw()
        assert next(parts) == STREAM[0]  # while the provider still holds back the rest
        world.qwen.go_on.set()
        assert b"".join(parts) == b"".join(STREAM[1:])


def test_the_worker_is_named_by_headers_then_by_the_bodys_metadata(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)
    named = b'{"model":"managed/routine","metadata":{"thread_id":"in-body"}}'
    for headers, worker in (
        ({}, "in-body"),
        ({"session_id": "codex"}, "codex"),
        ({"session-id": "s", "thread-id": "t"}, "t"),
        ({"x-session-id": "s"}, "s"),
    ):
        assert caller.post(PATH, content=named, headers=headers).status_code == 200
        assert world.qwen.requests[-1].headers["x-session-id"] == worker


def test_the_lists_of_models_need_no_admission(world: World, caller: httpx.Client) -> None:
    fixed = caller.get("/v1/models")
    assert fixed.status_code == 200
    assert {model["id"] for model in fixed.json()["data"]} >= {"gemma/gemma-4-31b"}
    assert "managed/routine" not in fixed.text
    assert "managed/routine" in caller.get("/v1/model-catalog").text
    assert not world.calls()


def test_the_services_have_their_own_health(world: World) -> None:
    with Client(world.server.address, token_file=world.server.token) as client:
        assert client.serving("envoy.service.ext_proc.v3.ExternalProcessor")
        assert client.serving("envoy.service.auth.v3.Authorization")


@pytest.mark.parametrize(("role", "status"), [("gateway", 200), ("collector", 503), ("", 503)])
def test_envoy_needs_the_role_of_a_gateway(role: str, status: int, tmp_path: Path) -> None:
    document = example()
    token = {"key": "authorization", "value": "Bearer let-me-in"}
    processing(document)["grpc_service"]["initial_metadata"] = [token] if role else []
    digest = hashlib.sha256(b"let-me-in").hexdigest()
    providers = {"providers": ["qwen"]} if role == "collector" else {}
    identities = [{"name": "edge", "role": role or "gateway", "tokenSha256": digest, **providers}]
    with World.start(tmp_path, document, identities=identities) as world:
        # An explicit model needs no facts.
        headers = {"thread-id": "t", "authorization": "Bearer let-me-in"}
        content = b'{"model":"gemma/gemma-4-31b"}'
        answer = httpx.post(world.url + PATH, content=content, headers=headers, timeout=30)
        assert answer.status_code == status, answer.text
        assert world.calls() == (1 if status == 200 else 0)
