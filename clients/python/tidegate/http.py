"""What a gateway that speaks HTTP needs around an answer: the trace context of a request, and the error for its caller.

answer = client.forwardable(model, worker_id, request_bytes=len(body))
if not answer.may_forward:
    status, headers, body = http_answer(answer)
"""

import json
import math
from collections.abc import Iterable, Mapping, MutableMapping
from datetime import timedelta
from typing import NamedTuple

import grpc

from tidegate.errors import TidegateError
from tidegate.flow import HopRefused
from tidegate.results import Admission
from tidegate.v1 import types_pb2

_LATER = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED})
_OF_THE_REQUEST = {grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.NOT_FOUND: 404}


class TraceContext(NamedTuple):
    """The W3C trace context of a request, exactly as it came: never mended, made or dropped."""

    traceparent: str
    tracestate: str


class HttpAnswer(NamedTuple):
    """What the gateway's own caller gets instead of an inference: an OpenAI-style error.

    Common SDKs retry 408, 409, 429 and 5xx; the statuses make them retry only what is retryable (§4.6 of the contract).
    """

    status: int
    headers: dict[str, str]
    body: bytes


def trace_from_headers(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> TraceContext:
    """Read the trace context of a request, for `flow`, `hop` or `agent_call`.

    Several tracestate headers are one list (W3C Trace Context, 3.3.1); several traceparent headers stay several,
    joined, and the server refuses them.
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    return TraceContext(_joined(pairs, "traceparent"), _joined(pairs, "tracestate"))


def inject_trace(trace: TraceContext, headers: MutableMapping[str, str]) -> None:
    """Put the trace context on a request in the place of whatever was there, under any spelling."""
    for name in [name for name in headers if name.lower() in TraceContext._fields]:
        del headers[name]
    if trace.traceparent:  # a tracestate without a traceparent means nothing
        headers.update({name: value for name, value in trace._asdict().items() if value})


def http_answer(reason: Admission | HopRefused | TidegateError) -> HttpAnswer:
    """Return the answer to a request that must not be forwarded, or to a hop that was not granted."""
    if isinstance(reason, Admission):
        if reason.may_forward:
            raise ValueError("the work may be forwarded; there is no error to answer with")
        return _to_error(reason.error) if reason.error else _to_refusal(reason.refusal)
    return _to_refusal(reason.refusal) if isinstance(reason, HopRefused) else _to_error(reason)


def _joined(pairs: Iterable[tuple[str, str]], wanted: str) -> str:
    return ",".join(value for name, value in pairs if name.lower() == wanted)


def _to_refusal(refusal: types_pb2.Refusal | None) -> HttpAnswer:
    if refusal is None or not 400 <= refusal.http_status <= 599:
        return _FAILED
    delay = refusal.retry_delay.ToTimedelta() if refusal.HasField("retry_delay") else None
    return _answer(refusal.http_status, refusal.code, refusal.message, retryable=refusal.retryable, delay=delay)


def _to_error(error: TidegateError) -> HttpAnswer:
    """Tell the caller only what a Tidegate server says about the request itself; the rest is the operator's."""
    if error.code in _OF_THE_REQUEST and error.reason:
        return _answer(_OF_THE_REQUEST[error.code], error.reason.lower(), error.message, retryable=False)
    if error.code in _LATER:
        message = "No decision on this request was possible now; it was not forwarded."
        return _answer(503, "admission_unavailable", message, retryable=True, delay=error.retry_delay)
    return _FAILED


def _answer(status: int, code: str, message: str, *, retryable: bool, delay: timedelta | None = None) -> HttpAnswer:
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    headers = {"content-type": "application/json", "x-should-retry": str(retryable).lower()}
    if delay:
        headers["retry-after"] = str(math.ceil(delay.total_seconds()))
    error = {"message": message, "type": kind, "param": None, "code": code}
    return HttpAnswer(status, headers, json.dumps({"error": error}).encode())


_FAILED = _answer(
    500, "admission_failed", "No decision on this request was possible; it was not forwarded.", retryable=False
)
