"""What goes out: JSON of the protocol's messages, and errors as JSON with the status that fits."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.rpc import code_pb2
from starlette.responses import Response

from tidegate_server.rpc.status import cut, outcome_of

Json: TypeAlias = dict[str, Any]

HTTP_STATUS = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.NOT_FOUND: 404,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.UNIMPLEMENTED: 501,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
"""By the status that gRPC would give; everything else is 500."""


def message_data(message: Message) -> Json:
    """A message as JSON data, with the .proto's names and every field that has a value or a default."""
    data: Json = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return data


def json_response(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that no cache keeps."""
    return Response(json_bytes(data), status, dict(headers or {}), "application/json")


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """UTF-8; half a surrogate pair, which JSON in a log may hold, becomes a question mark."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def error_response(error: Exception) -> Response:
    """The same words as a gRPC status has, never a trace or a driver's text."""
    data = error_data(error)
    status: int = data["status"]
    headers = {"www-authenticate": 'Bearer realm="tidegate"'} if status == 401 else {}
    if outcome_of(error).retry_after is not None:
        headers["retry-after"] = "1"
    return json_response({"error": data}, status, headers)


def error_data(error: Exception) -> Json:
    """An error as JSON data."""
    outcome = outcome_of(error)
    return {
        "status": HTTP_STATUS.get(outcome.code, 500),
        "reason": outcome.reason,
        "message": cut(outcome.message),
        "violations": [{"field": cut(v.field), "description": cut(v.description)} for v in outcome.violations],
    }
