"""The one place where an error becomes a gRPC status (§11 of the contract).

Each status carries one ErrorInfo (domain `tidegate`, the reasons of error_reason.proto), InvalidRequest a BadRequest
and what may pass later a RetryInfo. Messages are cut so that all trailers stay under 8 KiB: over that, gRPC answers
RESOURCE_EXHAUSTED in their place, which a gateway would read as "no capacity".
"""

from collections.abc import Mapping
from typing import NamedTuple

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from tidegate.v1 import admission_pb2, types_pb2

from tidegate_server import errors
from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.rpc.fact_mapping import duration

DOMAIN = "tidegate"
MAX_TEXT = 256
MAX_VIOLATIONS = 8
"""Bytes of one text, and how many violations are told: a status stays far below 8 KiB, in any alphabet."""

RETRY_SOON: Nanos = SECOND // 5
RETRY_ELSEWHERE: Nanos = SECOND

_STORES = {
    "pins": "PIN_STORE_UNAVAILABLE",
    "facts": "FACT_STORE_UNAVAILABLE",
    "flows": "FLOW_STORE_UNAVAILABLE",
    "agents": "AGENT_STORE_UNAVAILABLE",
    "decisions": "DECISION_LOG_UNAVAILABLE",
}
_FIELDS = {"pin": "pin_id", "flow": "flow_id", "hop": "hop_id", "decision": "decision_id"}
"""What names such a thing in a request, where that is not the word itself."""

_TOO_MANY = {"feeds": "TOO_MANY_FEEDS", "watchers": "TOO_MANY_WATCHERS"}


class Outcome(NamedTuple):
    """An error on its way to the wire."""

    code: int
    reason: str
    message: str
    metadata: Mapping[str, str] = {}
    retry_after: Nanos | None = None
    violations: tuple[errors.FieldViolation, ...] = ()


INTERNAL = Outcome(code_pb2.INTERNAL, "INTERNAL", "an unexpected error; the server's log has it")


def outcome_of(error: BaseException) -> Outcome:
    """What the caller is told of an error. Of one that is not the product's own, nothing but that it happened."""
    match error:
        case errors.InvalidRequest(violations=violations):
            return Outcome(code_pb2.INVALID_ARGUMENT, "INVALID_REQUEST", str(error), violations=violations)
        case errors.NotFound(kind=kind, name=name):
            return Outcome(code_pb2.NOT_FOUND, f"{kind.upper()}_NOT_FOUND", str(error), {_FIELDS.get(kind, kind): name})
        case errors.StoreUnavailable(store=store):
            return Outcome(code_pb2.UNAVAILABLE, _STORES[store], str(error), retry_after=RETRY_SOON)
        case errors.ShuttingDown():
            return Outcome(code_pb2.UNAVAILABLE, "SHUTTING_DOWN", str(error), retry_after=RETRY_ELSEWHERE)
        case errors.FeedReplaced(collector=collector):
            return Outcome(
                code_pb2.UNAVAILABLE, "FEED_REPLACED", str(error), {"collector_id": collector}, RETRY_ELSEWHERE
            )
        case errors.Overloaded(what=what):
            reason = _TOO_MANY.get(what, "OVERLOADED")
            return Outcome(code_pb2.RESOURCE_EXHAUSTED, reason, str(error), retry_after=RETRY_SOON)
        case _:
            return _access_outcome(error)


def _access_outcome(error: BaseException) -> Outcome:
    match error:
        case errors.IdentityRequired():
            return Outcome(code_pb2.UNAUTHENTICATED, "IDENTITY_REQUIRED", str(error))
        case errors.CredentialInvalid():
            return Outcome(code_pb2.UNAUTHENTICATED, "CREDENTIAL_INVALID", str(error))
        case errors.RoleNotAllowed(roles=roles):
            return Outcome(code_pb2.PERMISSION_DENIED, "ROLE_NOT_ALLOWED", str(error), {"role": ",".join(roles)})
        case errors.ProviderNotAllowed(provider=provider):
            return Outcome(code_pb2.PERMISSION_DENIED, "PROVIDER_NOT_ALLOWED", str(error), {"provider": provider})
        case errors.FlowStartNotAllowed():
            return Outcome(code_pb2.PERMISSION_DENIED, "FLOW_START_NOT_ALLOWED", str(error))
        case errors.AgentNotOwned(agent=agent):
            return Outcome(code_pb2.PERMISSION_DENIED, "AGENT_NOT_OWNED", str(error), {"agent": agent})
        case errors.NotImplementedYet():
            return Outcome(code_pb2.UNIMPLEMENTED, "NOT_IMPLEMENTED", str(error) or "not in this version")
        case TimeoutError():
            return Outcome(code_pb2.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", "the deadline passed")
        case _:
            return INTERNAL


def is_expected(error: BaseException) -> bool:
    """Whether an error is an answer to the caller; any other is a fault of ours and goes to the log with its trace."""
    return isinstance(error, errors.TidegateError | TimeoutError)


def status_of(outcome: Outcome) -> grpc.Status:
    """The rich status for `context.abort_with_status`."""
    details = [_error_info(outcome)]
    if outcome.violations:
        details.append(_bad_request(outcome.violations))
    if outcome.retry_after is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=duration(outcome.retry_after)))
    packed = []
    for detail in details:
        message = any_pb2.Any()
        message.Pack(detail)
        packed.append(message)
    status = status_pb2.Status(code=outcome.code, message=cut(outcome.message), details=packed)
    return rpc_status.to_status(status)


def _error_info(outcome: Outcome) -> error_details_pb2.ErrorInfo:
    metadata = {key: cut(value) for key, value in outcome.metadata.items()}
    return error_details_pb2.ErrorInfo(reason=outcome.reason, domain=DOMAIN, metadata=metadata)


def _bad_request(violations: tuple[errors.FieldViolation, ...]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(field=cut(v.field), description=cut(v.description))
            for v in violations[:MAX_VIOLATIONS]
        ]
    )


def item_error(error: BaseException) -> types_pb2.ItemError:
    """An error of one item of a batch."""
    outcome = outcome_of(error)
    return types_pb2.ItemError(code=outcome.code, reason=outcome.reason, message=cut(outcome.message))


def batch_error(error: BaseException) -> admission_pb2.AdmitBatchResult:
    """The same, as an AdmitBatch's result."""
    return admission_pb2.AdmitBatchResult(error=item_error(error))


def cut(text: str) -> str:
    """At most MAX_TEXT bytes of UTF-8, and no character that a log or a terminal would obey."""
    head = text[: MAX_TEXT + 1]
    printable = "".join(character if character.isprintable() else "?" for character in head).encode()
    if len(printable) <= MAX_TEXT:
        return printable.decode()
    return printable[: MAX_TEXT - len("…".encode())].decode(errors="ignore") + "…"
