"""From a decision to what Envoy does with the request: forward it under these headers, or answer with this error.

Whatever is not ADMITTED or BYPASSED with a binding is an error: nothing that is unknown here is ever forwarded.
"""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

from google.rpc import code_pb2
from tidegate.v1 import admission_pb2, types_pb2

from tidegate_server.core.headers import SESSION, UPSTREAM
from tidegate_server.core.model import SECOND
from tidegate_server.envoy.asking import INPUTS, InvalidBody
from tidegate_server.rpc.fact_mapping import nanos_of
from tidegate_server.rpc.status import cut, is_expected, outcome_of

log = logging.getLogger("tidegate.envoy")

FORWARD = frozenset({types_pb2.VERDICT_ADMITTED, types_pb2.VERDICT_BYPASSED})
HOP_HEADERS = ("traceparent", "tracestate")


class Forward(NamedTuple):
    """Send the request on. `headers` go on it, those in `shown` on the response, too; `removed` goes no further."""

    headers: Mapping[str, str]
    shown: Mapping[str, str]
    removed: tuple[str, ...]


class Deny(NamedTuple):
    """Answer with an error in place of the provider; `code` is also in `body`."""

    status: int
    code: str
    headers: Mapping[str, str]
    body: bytes


def answer_to(response: admission_pb2.AdmitResponse) -> Forward | Deny:
    """What a decision means."""
    if response.verdict in FORWARD and response.headers.get(UPSTREAM):
        return _forward(response)
    refusal = response.refusal
    if response.verdict != types_pb2.VERDICT_REFUSED or not 400 <= refusal.http_status <= 599:
        log.error("a decision that nobody understands: verdict %s, status %s", response.verdict, refusal.http_status)
        return FAILED
    delay = nanos_of(refusal.retry_delay) if refusal.HasField("retry_delay") else None
    message = f"{refusal.message} What would help: {response.suggestion}." if response.suggestion else refusal.message
    return deny(refusal.http_status, refusal.code, message, retryable=refusal.retryable, delay=delay)


def _forward(response: admission_pb2.AdmitResponse) -> Forward:
    shown = dict(response.headers)
    headers = dict(shown)
    if response.HasField("hop"):
        headers |= {"traceparent": response.hop.traceparent, "tracestate": response.hop.tracestate}
    # A provider without session affinity is not told the caller's session (§4.6 of the contract).
    return Forward(headers, shown, tuple(name for name in (*INPUTS, SESSION) if name not in headers))


def answer_to_error(error: Exception) -> Deny:
    """What the caller is told when no decision was possible: only what is about the request itself."""
    if not is_expected(error):
        log.error("a request from Envoy failed", exc_info=error)
    if isinstance(error, InvalidBody):
        return deny(400, "invalid_json", cut(str(error)))
    outcome = outcome_of(error)
    if outcome.code in (code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND):
        status = 400 if outcome.code == code_pb2.INVALID_ARGUMENT else 404
        return deny(status, outcome.reason.lower(), cut(outcome.message))
    if outcome.code in (code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED, code_pb2.DEADLINE_EXCEEDED):
        message = "No decision on this request was possible now; it was not forwarded."
        return deny(503, "admission_unavailable", message, retryable=True, delay=outcome.retry_after)
    return FAILED


def deny(status: int, code: str, message: str, *, retryable: bool = False, delay: int | None = None) -> Deny:
    """An error in the style of OpenAI's API, which common SDKs read. `delay` is in nanoseconds."""
    kind = "rate_limit_error" if status == HTTPStatus.TOO_MANY_REQUESTS else "invalid_request_error"
    body = {"message": message, "type": "server_error" if status >= 500 else kind, "param": None, "code": code}
    headers = {"content-type": "application/json", "x-should-retry": "true" if retryable else "false"}
    if delay:
        headers["retry-after"] = str(-(-delay // SECOND))
    return Deny(status, code, headers, json.dumps({"error": body}).encode())


FAILED = deny(500, "admission_failed", "No decision on this request was possible; it was not forwarded.")
