"""What a call raises when there was no answer.

A policy "no" is an answer, not an error: see `tidegate.results.Admission`. Everything here means that no decision was
possible (§11 of the contract), and in every case: do not forward the work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from tidegate.results import Admission

DOMAIN = "tidegate"
_DETAILS = "grpc-status-details-bin"
_Detail = TypeVar("_Detail", bound=Message)


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One fault of a rejected request."""

    field: str
    """Path of the field, e.g. `requests[3].worker_id`."""
    description: str


class TidegateError(Exception):
    """A call that got a gRPC status instead of an answer.

    Attributes:
        code: the gRPC status.
        reason: the `ErrorReason` without its prefix (`PIN_STORE_UNAVAILABLE`), empty when the status did not come from
            a Tidegate server (a dead connection, a proxy, the client's own deadline).
        message: one sentence for people.
        metadata: what the server says it was about (`{"model": "managed/rutine"}`).
        retry_delay: how long the server asks to wait; None when it does not say.
        violations: the faults of an INVALID_ARGUMENT, field by field.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay: timedelta | None = None,
        violations: tuple[FieldViolation, ...] = (),
    ) -> None:
        if code is not None:
            self.code = code
        self.message = message
        self.reason = reason
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.retry_delay = retry_delay
        self.violations = violations
        told = (f"{fault.field}: {fault.description}" for fault in violations)
        faults = "".join(f"; {fault}" for fault in told if fault not in message)
        super().__init__(f"{self.code.name}{f' ({reason})' if reason else ''}: {message}{faults}")


class InvalidArgument(TidegateError):
    """The request breaks a rule; `violations` names each field. The same request fails again."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(TidegateError):
    """A route, provider, pin, flow or agent that the server does not have."""

    code = grpc.StatusCode.NOT_FOUND


class Unavailable(TidegateError):
    """The server, or a store it needs, could not be reached. The client has retried it within the deadline."""

    code = grpc.StatusCode.UNAVAILABLE


class ResourceExhausted(TidegateError):
    """The server protects itself, or a message is too large. It says nothing about the providers' capacity."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unauthenticated(TidegateError):
    """No identity, or one that the server does not know."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(TidegateError):
    """The identity's role does not cover the call."""

    code = grpc.StatusCode.PERMISSION_DENIED


class DeadlineExceeded(TidegateError):
    """The deadline ran out. What had begun may have been stored: repeat with the same ids."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unimplemented(TidegateError):
    """This server, or this port of it, does not serve the call."""

    code = grpc.StatusCode.UNIMPLEMENTED


class CredentialError(Exception):
    """A token or certificate file that cannot be used; the message names the file and what is wrong, never its text."""


class AdmissionRefused(Exception):
    """Raised by `Admission.require()` when the work must not be forwarded; `admission` holds the whole answer."""

    def __init__(self, admission: "Admission") -> None:
        self.admission = admission
        super().__init__(admission.message)


_BY_CODE: Mapping[grpc.StatusCode, type[TidegateError]] = {
    error.code: error
    for error in (
        InvalidArgument,
        NotFound,
        Unavailable,
        ResourceExhausted,
        Unauthenticated,
        PermissionDenied,
        DeadlineExceeded,
        Unimplemented,
    )
}


class _Details(Protocol):
    """What the sync and the asyncio errors of grpc have in common."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> object: ...


def from_rpc_error(error: grpc.RpcError) -> TidegateError:
    """Turn grpc's own error into the typed one, with all that its trailers say."""
    if not hasattr(error, "code"):
        return TidegateError(str(error) or type(error).__name__)
    call: _Details = error
    code = call.code()
    status = _status(call.trailing_metadata())
    info = _unpack(status, error_details_pb2.ErrorInfo())
    ours = info if info is not None and info.domain == DOMAIN else None
    retry = _unpack(status, error_details_pb2.RetryInfo())
    bad = _unpack(status, error_details_pb2.BadRequest())
    return _BY_CODE.get(code, TidegateError)(
        call.details() or code.name,
        code=code,
        reason=ours.reason if ours else "",
        metadata=ours.metadata if ours else None,
        retry_delay=retry.retry_delay.ToTimedelta() if retry else None,
        violations=tuple(FieldViolation(fault.field, fault.description) for fault in bad.field_violations)
        if bad
        else (),
    )


def _status(trailers: object) -> status_pb2.Status:
    """Read the google.rpc.Status of the trailers; details that nobody can read are no reason to lose the status."""
    pairs = dict(trailers) if trailers else {}  # type: ignore[call-overload]
    encoded = pairs.get(_DETAILS)
    try:
        return status_pb2.Status.FromString(encoded) if isinstance(encoded, bytes) else status_pb2.Status()
    except DecodeError:
        return status_pb2.Status()


def _unpack(status: status_pb2.Status, into: _Detail) -> _Detail | None:
    for detail in status.details:
        try:
            if detail.Unpack(into):
                return into
        except DecodeError:
            continue
    return None
