"""The order of parts in which Envoy shows a request, without Envoy."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from tidegate.v1 import admission_pb2, flow_pb2, types_pb2
from tidegate_server.core.model import Caller
from tidegate_server.envoy import ext_proc
from tidegate_server.rpc import guard
from tidegate_server.usecases.identify import LOCAL_CALLER

BODY = b'{"model":"managed/routine"}'
NO_CONTEXT: Any = None


class Decisions:
    """Admits everything, and keeps what it was asked and which hops were exited."""

    def __init__(self, hop: flow_pb2.HopGrant | None = None) -> None:
        self.asked: list[admission_pb2.AdmitRequest] = []
        self.exited: list[tuple[str, str, bool]] = []
        self._hop = hop

    async def admit(self, request: admission_pb2.AdmitRequest, _: Any) -> admission_pb2.AdmitResponse:
        """As the servicer calls it."""
        self.asked.append(request)
        return admission_pb2.AdmitResponse(
            verdict=types_pb2.VERDICT_ADMITTED,
            binding=types_pb2.Binding(model="qwen-next"),
            headers={"x-gateway-upstream": "qwen"},
            hop=self._hop,
        )

    async def exit_hop(self, caller: Caller, hop: flow_pb2.HopGrant, success: bool) -> None:
        """As the servicer calls it."""
        self.exited.append((caller.namespace, hop.hop_id, success))


@contextmanager
def as_caller(caller: Caller) -> Iterator[None]:
    """Within it, that caller's RPC is served."""
    token = guard._CALLER.set(caller)
    try:
        yield
    finally:
        guard._CALLER.reset(token)


async def processed(decisions: Decisions, *parts: wire.ProcessingRequest) -> list[wire.ProcessingResponse]:
    """What is answered to these parts."""

    async def requests() -> AsyncIterator[wire.ProcessingRequest]:
        for part in parts:
            yield part

    servicer = ext_proc.ExternalProcessorServicer(decisions.admit, decisions.exit_hop, nullcontext)
    return [answer async for answer in servicer.Process(requests(), NO_CONTEXT)]


def headers(mode: int | None = ProcessingMode.BUFFERED, **more: Any) -> wire.ProcessingRequest:
    """The first part."""
    request = wire.ProcessingRequest(request_headers=wire.HttpHeaders(**more))
    if mode is not None:
        request.protocol_config.request_body_mode = mode
    return request


def body(content: bytes = BODY, *, end: bool = True) -> wire.ProcessingRequest:
    """The second part."""
    return wire.ProcessingRequest(request_body=wire.HttpBody(body=content, end_of_stream=end))


def response(status: bytes = b"200") -> wire.ProcessingRequest:
    """The response's headers."""
    part = wire.ProcessingRequest(response_headers=wire.HttpHeaders())
    part.response_headers.headers.headers.add(key=":status", raw_value=status)
    return part


@pytest.mark.parametrize(
    ("mode", "end", "is_whole"),
    [
        (ProcessingMode.BUFFERED, True, True),
        (ProcessingMode.BUFFERED, False, True),  # trailers follow
        (ProcessingMode.STREAMED, True, False),
        (ProcessingMode.BUFFERED_PARTIAL, True, False),
        (ProcessingMode.FULL_DUPLEX_STREAMED, False, False),
        (None, True, True),
        (None, False, False),
    ],
)
async def test_only_a_whole_body_is_decided_on(mode: int | None, end: bool, is_whole: bool) -> None:
    decisions = Decisions()
    first, second = await processed(decisions, headers(mode), body(end=end))
    assert first.HasField("request_headers")
    assert len(decisions.asked) == is_whole
    if is_whole:
        assert second.request_body.response.body_mutation.body == b'{"model":"qwen-next"}'
        assert second.request_body.response.clear_route_cache
    else:
        assert second.immediate_response.status.code == 500


async def test_a_request_without_a_body_is_answered_at_once() -> None:
    decisions = Decisions()
    (only,) = await processed(decisions, headers(end_of_stream=True), body())
    assert only.immediate_response.status.code == 400
    assert not decisions.asked


async def test_what_was_refused_is_not_decided_on_again() -> None:
    decisions = Decisions()
    _, refusal = await processed(decisions, headers(), body(b"[]"), body(), response())
    assert refusal.immediate_response.status.code == 400
    assert not decisions.asked


@pytest.mark.parametrize(("status", "success"), [(b"200", True), (b"204", True), (b"429", False), (b"500", False)])
async def test_a_hop_ends_with_the_stream(status: bytes, success: bool) -> None:
    decisions = Decisions(flow_pb2.HopGrant(hop_id="h", traceparent="t", tracestate="s"))
    with as_caller(LOCAL_CALLER):
        _, answer, shown = await processed(decisions, headers(), body(), response(status))
    sent = {h.header.key: h.header.raw_value for h in answer.request_body.response.header_mutation.set_headers}
    assert (sent["traceparent"], sent["tracestate"]) == (b"t", b"s")
    told = {h.header.key for h in shown.response_headers.response.header_mutation.set_headers}
    assert told == {"x-gateway-upstream"}
    assert decisions.exited == [("default", "h", success)]


async def test_a_hop_without_a_response_has_failed() -> None:
    decisions = Decisions(flow_pb2.HopGrant(hop_id="h"))
    with as_caller(LOCAL_CALLER):
        await processed(decisions, headers(), body())
    assert decisions.exited == [("default", "h", False)]
