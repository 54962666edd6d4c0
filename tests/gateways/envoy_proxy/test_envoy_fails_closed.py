"""A wrong, missing, late or unknown answer never forwards a request through Envoy."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from envoy.service.auth.v3 import external_auth_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from tidegate.v1 import admission_pb2, types_pb2
from tidegate_server import errors

from tests.gateways.envoy_proxy.filters import impatient, processing, with_authorization
from tests.gateways.envoy_proxy.scripted import (
    END,
    LATE,
    Answer,
    Script,
    answering,
    body_unchanged,
    deciding,
    headers_seen,
)
from tests.gateways.envoy_proxy.support import (
    GEMMA,
    HEALTHY,
    QWEN,
    TIDEGATE,
    Engine,
    World,
    engine,
    envoy,
    example,
    until,
)

PATH = "/v1/chat/completions"
FORGED = {"thread-id": "t", "x-gateway-upstream": "qwen", "x-gateway-upstream-model": "m"}
ASK = b'{"model":"managed/routine"}'
GARBAGE = b"\xff\xff\xff\xff\x07garbage"
FAR_FIELD = b"\xfa\xff\x7f\x02ok"
"""A valid message with nothing but a field that nobody knows yet."""

FAILURES: dict[str, Answer] = {
    "UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "DEADLINE_EXCEEDED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "UNKNOWN": grpc.StatusCode.UNKNOWN,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "garbage": GARBAGE,
    "nothing set": b"",
    "unknown field": FAR_FIELD,
    "late": LATE,
}
WRONG_PART = wire.ProcessingResponse(response_headers=wire.HeadersResponse()).SerializeToString()
SCRIPTS: dict[str, tuple[Answer, ...]] = {
    **{f"to the headers: {name}": (answer,) for name, answer in FAILURES.items()},
    **{f"to the body: {name}": (headers_seen(), answer) for name, answer in FAILURES.items()},
    "to the headers: the end": (END,),
    "to the body: the end": (headers_seen(), END),
    "to the body: another part's answer": (headers_seen(), WRONG_PART),
    "to the body: forward it, without a decision": (headers_seen(), body_unchanged()),
}


@contextmanager
def gateway(port: int, directory: Path, document: Any) -> Iterator[tuple[httpx.Client, Engine]]:
    """Envoy before that server, with one engine under both names."""
    with (
        engine() as provider,
        envoy({TIDEGATE: port, QWEN: provider.port, GEMMA: provider.port}, directory, document) as url,
        httpx.Client(base_url=url, timeout=30) as caller,
    ):
        yield caller, provider


Scripted = tuple[httpx.Client, Engine, Script]


@pytest.fixture(scope="module", params=["ext_proc", "ext_authz"])
def scripted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """Envoy, impatient, before a scripted server."""
    directory = Path(tmp_path_factory.mktemp("envoy"))
    document = impatient() if request.param == "ext_proc" else with_authorization(0.4)
    with answering() as (port, script), gateway(port, directory, document) as (caller, provider):
        yield caller, provider, script


@pytest.mark.parametrize("scripted", ["ext_proc"], indirect=True)
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_answer_of_another_server_forwards(script: str, scripted: Scripted) -> None:
    caller, provider, asked = scripted
    asked.play(*SCRIPTS[script])
    answer = caller.post(PATH, content=ASK, headers=FORGED)
    assert asked.calls == 1
    assert answer.status_code >= 500
    assert answer.json()["error"]["type"] == "server_error"
    assert not provider.requests


NOTHING_DECIDED = external_auth_pb2.CheckResponse(ok_response=external_auth_pb2.OkHttpResponse()).SerializeToString()


@pytest.mark.parametrize("scripted", ["ext_authz"], indirect=True)
@pytest.mark.parametrize("name", [*FAILURES, "forward it, without a decision"])
def test_no_answer_of_another_authorization_server_forwards(name: str, scripted: Scripted) -> None:
    caller, provider, asked = scripted
    asked.play(FAILURES.get(name, NOTHING_DECIDED))
    answer = caller.post(PATH, content=ASK, headers=FORGED)
    assert asked.calls == 1
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"
    assert not provider.requests


Response = admission_pb2.AdmitResponse
HEADERS = {"x-gateway-upstream": "qwen", "x-gateway-upstream-model": "m"}
UNKNOWN_VERDICT: Any = 99


def _raise(error: Exception) -> Callable[[], Response]:
    def decide() -> Response:
        raise error

    return decide


DECISIONS: dict[str, tuple[Callable[[], Response], int, str]] = {
    "unset verdict": (lambda: Response(headers=HEADERS), 500, "admission_failed"),
    "verdict 99": (lambda: Response(verdict=UNKNOWN_VERDICT, headers=HEADERS), 500, "admission_failed"),
    "admitted to nowhere": (lambda: Response(verdict=types_pb2.VERDICT_ADMITTED), 500, "admission_failed"),
    "refused for no reason": (lambda: Response(verdict=types_pb2.VERDICT_REFUSED), 500, "admission_failed"),
    "refused with a good status": (
        lambda: Response(verdict=types_pb2.VERDICT_REFUSED, refusal=types_pb2.Refusal(http_status=200)),
        500, "admission_failed",
    ),
    "a store is down": (_raise(errors.StoreUnavailable("pins")), 503, "admission_unavailable"),
    "too many calls": (_raise(errors.Overloaded()), 503, "admission_unavailable"),
    "the deadline": (_raise(TimeoutError()), 503, "admission_unavailable"),
    "shutting down": (_raise(errors.ShuttingDown()), 503, "admission_unavailable"),
    "may not start flows": (_raise(errors.FlowStartNotAllowed()), 500, "admission_failed"),
    "a fault of ours": (_raise(ZeroDivisionError("secret")), 500, "admission_failed"),
}  # fmt: skip


@pytest.mark.parametrize("service", ["ext_proc", "ext_authz"])
def test_no_decision_but_an_admission_forwards(service: str, tmp_path: Path) -> None:
    document = example() if service == "ext_proc" else with_authorization()
    now: list[Callable[[], Response]] = []
    with deciding(lambda _: now[0]()) as port, gateway(port, tmp_path, document) as (caller, provider):
        for name, (decide, status, code) in DECISIONS.items():
            now[:] = [decide]
            answer = caller.post(PATH, content=ASK, headers=FORGED)
            assert (name, answer.status_code, answer.json()["error"]["code"]) == (name, status, code)
            assert answer.headers["x-should-retry"] == ("true" if status == 503 else "false")
            assert "secret" not in answer.text
        assert not provider.requests
        binding = types_pb2.Binding(model="m")
        now[:] = [lambda: Response(verdict=types_pb2.VERDICT_ADMITTED, headers=HEADERS, binding=binding)]
        assert (
            caller.post(PATH, content=ASK, headers=FORGED).status_code == 200
        )  # so the rest of this test means something
        assert len(provider.requests) == 1


def test_a_provider_that_envoy_does_not_know_is_an_error(tmp_path: Path) -> None:
    nowhere = Response(verdict=types_pb2.VERDICT_ADMITTED, headers={"x-gateway-upstream": "mars"})
    with deciding(lambda _: nowhere) as port, gateway(port, tmp_path, example()) as (caller, provider):
        answer = caller.post(PATH, content=ASK, headers=FORGED)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "upstream_failed")
        assert not provider.requests


@pytest.mark.parametrize("mode", ["NONE", "STREAMED", "BUFFERED_PARTIAL"])
def test_bodies_that_envoy_does_not_send_whole_never_pass(mode: str, tmp_path: Path) -> None:
    document = example()
    processing(document)["processing_mode"]["request_body_mode"] = mode
    with World.start(tmp_path, document) as world:
        world.report(qwen=HEALTHY)
        answer = httpx.post(world.url + PATH, content=ASK, headers=FORGED, timeout=30)
        assert answer.status_code >= 500
        assert not world.calls()


def test_tidegate_down_and_up_again(world: World, caller: httpx.Client) -> None:
    world.report(qwen=HEALTHY)
    assert caller.post(PATH, content=ASK, headers=FORGED).status_code == 200
    world.running.close()
    for _ in range(3):
        answer = caller.post(PATH, content=ASK, headers=FORGED)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "admission_unavailable")
        assert answer.headers["x-should-retry"] == "true"
    assert world.calls() == 1
    world.restart()
    world.report(qwen=HEALTHY)
    until(lambda: caller.post(PATH, content=ASK, headers=FORGED).status_code == 200)  # Envoy connects again
    assert world.calls() == 2


def test_a_decision_that_is_being_made_when_tidegate_stops_is_still_an_answer(tmp_path: Path) -> None:
    with World.start(tmp_path, coldWait="2.5s") as world, ThreadPoolExecutor(1) as threads:
        # Nothing is known, and collectors may still come: Tidegate waits for them.
        ask = partial(httpx.post, world.url + PATH, content=ASK, headers=FORGED, timeout=30)
        asked = threads.submit(ask)
        assert wait([asked], timeout=0.3).not_done
        world.server.stop()
        answer = asked.result()
        assert answer.json()["error"]["code"] in ("capacity_unknown", "admission_unavailable")
        assert answer.headers["x-should-retry"] == "true"
        assert not world.calls()


def test_the_example_waits_longer_than_tidegate_does() -> None:
    assert processing(example())["message_timeout"] == "3.5s"
    assert processing(example())["failure_mode_allow"] is False
    authorization = example("ext-authz-filter.yaml")["typed_config"]
    assert authorization["grpc_service"]["timeout"] == "3.5s"
    assert authorization["failure_mode_allow"] is False
