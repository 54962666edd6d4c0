"""Client of Tidegate, the admission service that a gateway calls before inference.

    from tidegate import Client

    with Client() as tidegate:
        answer = tidegate.forwardable("managed/routine", "thread-42", request_bytes=len(body))
        if answer.may_forward:
            send_to(answer.binding.provider, answer.binding.model, headers=answer.headers)

Whatever is not an answer of ADMITTED or BYPASSED means "do not forward"; `may_forward` says exactly that.
"""

from tidegate.aio import AsyncClient
from tidegate.client import Client
from tidegate.credentials import Connection, Tls, TokenFile, find_local_token
from tidegate.errors import (
    AdmissionRefused,
    CredentialError,
    DeadlineExceeded,
    FieldViolation,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    TidegateError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from tidegate.feed import Feed
from tidegate.http import HttpAnswer, TraceContext, http_answer, inject_trace, trace_from_headers
from tidegate.requests import admit_request
from tidegate.results import Admission, AdmitOptions, PinAnswer, may_forward
from tidegate.retry import NO_RETRY, RetryPolicy

__all__ = [
    "NO_RETRY",
    "Admission",
    "AdmissionRefused",
    "AdmitOptions",
    "AsyncClient",
    "Client",
    "Connection",
    "CredentialError",
    "DeadlineExceeded",
    "Feed",
    "FieldViolation",
    "HttpAnswer",
    "InvalidArgument",
    "NotFound",
    "PermissionDenied",
    "PinAnswer",
    "ResourceExhausted",
    "RetryPolicy",
    "TidegateError",
    "Tls",
    "TokenFile",
    "TraceContext",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "admit_request",
    "find_local_token",
    "http_answer",
    "inject_trace",
    "may_forward",
    "trace_from_headers",
]
