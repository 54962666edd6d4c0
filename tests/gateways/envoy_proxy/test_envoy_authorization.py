"""External authorization: the same decision for gateways that write the model into the body themselves."""

from pathlib import Path

import httpx
import pytest

from tests.gateways.envoy_proxy.filters import manager, with_authorization
from tests.gateways.envoy_proxy.support import HEALTHY, MIB, UNHEALTHY, World

PATH = "/v1/chat/completions"
ASK = b'{"model":"managed/routine", "messages":[]}'


def test_the_decision_goes_into_headers_and_the_body_stays(tmp_path: Path) -> None:
    with World.start(tmp_path, with_authorization()) as world, httpx.Client(base_url=world.url) as caller:
        world.report(qwen=HEALTHY)
        headers = {"x-session-id": "s", "x-gateway-upstream": "gemma", "x-tidegate-compaction": "false"}
        answer = caller.post(PATH, content=ASK, headers=headers)
        assert answer.status_code == 200
        (got,) = world.qwen.requests
        assert got.body == ASK
        expected = {
            "x-gateway-upstream": "qwen",
            "x-gateway-upstream-model": "qwen3.8-flash-next",
            "x-gateway-managed-route": "managed/routine",
            "x-gateway-managed-candidate": "qwen/qwen3.8-flash-next",
            "x-session-id": "s",
        }
        assert expected.items() <= got.headers.items()
        assert expected.items() <= dict(answer.headers).items()
        assert "x-tidegate-compaction" not in got.headers
        world.report(qwen=UNHEALTHY)
        refused = caller.post(PATH, content=ASK, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "pin_provider_unavailable")
        assert refused.headers["content-type"] == "application/json"
        assert refused.headers["x-should-retry"] == "true"
        assert world.calls() == 1


def test_sizes_are_those_of_the_body(tmp_path: Path) -> None:
    head, tail = b'{"model":"managed/routine","a":"', b'"}'
    exact = head + b"\xc3\xa9" * ((262144 - len(head) - len(tail)) // 2) + tail
    with World.start(tmp_path, with_authorization()) as world, httpx.Client(base_url=world.url, timeout=30) as caller:
        world.report(qwen=HEALTHY)
        assert caller.post(PATH, content=exact, headers={"thread-id": "t"}).status_code == 200
        over = caller.post(PATH, content=exact + b" ", headers={"thread-id": "t"})
        assert (over.status_code, over.json()["error"]["code"]) == (400, "context_length_exceeded")
        largest = b'{"model":"managed/implement"}' + b" " * (8 * MIB - 29)
        assert caller.post(PATH, content=largest, headers={"thread-id": "t"}).status_code == 200
        assert world.qwen.requests[-1].body == largest
        over = caller.post(PATH, content=largest + b" " * MIB, headers={"thread-id": "t"})
        assert (over.status_code, over.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "setting",
    [{"max_request_bytes": 8, "allow_partial_message": True}, {"pack_as_bytes": False}],
)
def test_a_body_that_envoy_does_not_send_whole_and_as_it_is_never_passes(
    setting: dict[str, object], tmp_path: Path
) -> None:
    document = with_authorization()
    manager(document)["http_filters"][0]["typed_config"]["with_request_body"] |= setting
    with World.start(tmp_path, document) as world:
        world.report(qwen=HEALTHY)
        answer = httpx.post(world.url + PATH, content=ASK, headers={"thread-id": "t"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "admission_failed")
        assert not world.calls()


def test_without_the_body_the_gateways_own_header_names_the_model(tmp_path: Path) -> None:
    document = with_authorization()
    authz = manager(document)["http_filters"][0]
    del authz["typed_config"]["with_request_body"]
    mutation = {"append": {"header": {"key": "x-gateway-model", "value": "managed/routine"}}}
    named = {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": [mutation]},
        },
    }
    manager(document)["http_filters"].insert(0, named)
    with World.start(tmp_path, document) as world, httpx.Client(base_url=world.url, timeout=30) as caller:
        world.report(qwen=HEALTHY)
        body = b'{"model":"x"}' + b" " * (262144 - 13)
        assert caller.post(PATH, content=body, headers={"thread-id": "t"}).status_code == 200
        over = caller.post(PATH, content=body + b" ", headers={"thread-id": "t"})
        assert (over.status_code, over.json()["error"]["code"]) == (400, "context_length_exceeded")
        unsized = caller.post(PATH, content=iter([body]), headers={"thread-id": "t"})
        assert (unsized.status_code, unsized.json()["error"]["code"]) == (400, "invalid_request")
        assert len(world.qwen.requests) == 1
