"""Envoy's external authorization, for gateways that write the provider's model into the body themselves.

The same decision under the same headers as in external processing; the body cannot be changed from here.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import attribute_context_pb2
from envoy.service.auth.v3 import external_auth_pb2 as wire
from envoy.service.auth.v3 import external_auth_pb2_grpc as rpc
from envoy.type.v3 import http_status_pb2
from google.rpc import code_pb2, status_pb2
from tidegate.v1 import admission_pb2

from tidegate_server.envoy.answering import FAILED, Deny, Forward, answer_to, answer_to_error
from tidegate_server.envoy.asking import TARGET_AGENT, admit_request, read_body
from tidegate_server.envoy.ext_proc import OVERWRITE, joined
from tidegate_server.errors import FieldViolation, InvalidRequest
from tidegate_server.rpc.guard import Context

log = logging.getLogger("tidegate.envoy")

Admit = Callable[[admission_pb2.AdmitRequest, Context], Awaitable[admission_pb2.AdmitResponse]]
PARTIAL_BODY = "x-envoy-auth-partial-body"


class AuthorizationServicer(rpc.AuthorizationServicer):  # type: ignore[misc] # xds-protos ships no types
    """One call an HTTP request."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit

    async def Check(self, request: wire.CheckRequest, context: Context) -> wire.CheckResponse:
        """Whether the request may go on, and under which headers."""
        http = request.attributes.request.http
        if http.body or http.headers.get(PARTIAL_BODY) == "true":
            log.error("Envoy does not send whole bodies: set pack_as_bytes, and allow_partial_message to false")
            return check_response(FAILED)
        try:
            return check_response(answer_to(await self._admit(asked_of(http), context)))
        except Exception as error:  # noqa: BLE001 - told to the caller, and logged where it is none of its doing
            return check_response(answer_to_error(error))


def asked_of(http: attribute_context_pb2.AttributeContext.HttpRequest) -> admission_pb2.AdmitRequest:
    """The admission that a request asks for. Raises InvalidRequest.

    Without `with_request_body` the headers alone speak, and the size is that of `content-length`.
    """
    headers = {**http.headers, **joined(http.header_map), ":path": http.path}
    if headers.get(TARGET_AGENT):  # nobody would tell when the hop is over
        raise InvalidRequest([FieldViolation(TARGET_AGENT, "needs external processing; ext_authz enters no hop")])
    body = read_body(http.raw_body) if http.raw_body else None
    length = headers.get("content-length", "")  # `size` is what Envoy has received so far
    size = int(length) if length.isascii() and length.isdigit() else None
    return admit_request(headers, len(http.raw_body) if http.raw_body else size, body)


def check_response(answer: Forward | Deny) -> wire.CheckResponse:
    """What Envoy does with the request."""
    if isinstance(answer, Deny):
        return wire.CheckResponse(
            status=status_pb2.Status(code=code_pb2.PERMISSION_DENIED),
            denied_response=wire.DeniedHttpResponse(
                status=http_status_pb2.HttpStatus(code=answer.status),
                headers=options(answer.headers),
                body=answer.body.decode(),
            ),
        )
    return wire.CheckResponse(
        status=status_pb2.Status(code=code_pb2.OK),
        ok_response=wire.OkHttpResponse(
            headers=options(answer.headers),
            headers_to_remove=answer.removed,
            response_headers_to_add=options(answer.shown),
        ),
    )


def options(headers: Mapping[str, str]) -> list[base_pb2.HeaderValueOption]:
    """Headers that replace what is there under their names. Unlike external processing, this reads no `raw_value`."""
    return [
        base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=name, value=value), append_action=OVERWRITE)
        for name, value in headers.items()
    ]


def add_to(server: grpc.aio.Server, servicer: AuthorizationServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_AuthorizationServicer_to_server(servicer, server)
    return str(wire.DESCRIPTOR.services_by_name["Authorization"].full_name)
