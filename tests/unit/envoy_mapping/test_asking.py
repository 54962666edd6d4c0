"""What a request asks for, by its headers and its body."""

import pytest
from envoy.config.core.v3 import base_pb2
from google.protobuf.json_format import MessageToDict
from tidegate_server.envoy.asking import InvalidBody, admit_request, read_body
from tidegate_server.envoy.ext_proc import joined
from tidegate_server.errors import InvalidRequest

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}


def asked(headers: dict[str, str], body: bytes = b'{"model":"m"}') -> dict[str, object]:
    """The request that is made of it, without what every one has."""
    request = MessageToDict(admit_request(headers, len(body), read_body(body)))
    assert request.pop("requestBytes") == str(len(body))
    return request


@pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ({}, "model", "m"),
        ({"x-gateway-model": "managed/team"}, "model", "managed/team"),
        ({"thread-id": "t", "session-id": "s"}, "workerId", "t"),
        ({"x-thread-id": "t", "x-session-id": "s"}, "workerId", "t"),
        ({"session_id": "s"}, "workerId", "s"),
        ({"x-tidegate-compaction": "True"}, "compaction", True),
        ({":path": "/v1/responses/compact?a=b"}, "compaction", True),
        ({"x-tidegate-require-pin": "true"}, "requirePin", True),
        ({"x-tidegate-provider-state": "codex"}, "providerState", "codex"),
        ({"x-gateway-tenant": "acme"}, "tenant", "acme"),
        ({"x-request-id": "r-1"}, "requestId", "r-1"),
    ],
)
def test_what_headers_say(headers: dict[str, str], field: str, value: object) -> None:
    assert asked(headers)[field] == value


def test_nothing_is_made_up() -> None:
    assert asked({":path": "/v1/compaction", "x-tidegate-compaction": "false"}) == {"model": "m"}
    assert not admit_request({}, None, None).HasField("request_bytes")


def test_what_the_body_says() -> None:
    body = (
        b'{"model":"m","reasoning":{"effort":"high"},"previous_response_id":"r","metadata":{"session_id":"s"},'
        b'"input":[{"content":[{"type":"input_image"}]}]}'
    )
    expected = {
        "model": "m", "reasoningEffort": "high", "providerState": "unknown", "workerId": "s",
        "inputModalities": ["image"],
    }  # fmt: skip
    assert asked({}, body) == expected
    assert asked({"x-tidegate-provider-state": "codex"}, body)["providerState"] == "codex"


def test_an_agent_asks_within_its_flow_and_a_target_is_a_hop() -> None:
    place = asked({**TRACE, "tracestate": "a=1", "x-gateway-agent": "planner"})["flow"]
    assert place == {**TRACE, "tracestate": "a=1", "agent": "planner"}
    headers = {**TRACE, "x-gateway-agent": "planner", "x-gateway-target-agent": "coder", "x-gateway-flow-profile": "p"}
    assert asked(headers)["hop"] == {**TRACE, "callerAgent": "planner", "targetAgent": "coder", "profile": "p"}
    assert "flow" not in asked(TRACE)
    assert "hop" not in asked(TRACE)


@pytest.mark.parametrize("headers", [{"x-gateway-agent": "a"}, {"x-gateway-target-agent": "a", "tracestate": "a=1"}])
def test_an_agent_without_a_traceparent_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="traceparent: is missing"):
        asked(headers)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidBody, match="no Unicode"):
        asked({"thread-id": b"\xff".decode("utf-8", "surrogateescape")})


def test_headers_of_one_name_are_one_list() -> None:
    header = base_pb2.HeaderValue
    got = joined(
        base_pb2.HeaderMap(
            headers=[
                header(key="tracestate", raw_value=b"a=1"),
                header(key="TraceState", value="b=2"),
                header(key="empty"),
            ]
        )
    )
    assert got == {"tracestate": "a=1,b=2", "empty": ""}
