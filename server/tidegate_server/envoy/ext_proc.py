"""Envoy's external processing: the request is decided on and rewritten, or answered with an error.

Envoy opens one stream for each HTTP request: its headers, its whole body, then the response's headers.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as rpc
from envoy.type.v3 import http_status_pb2
from tidegate.v1 import admission_pb2, flow_pb2

from tidegate_server.core.model import Caller
from tidegate_server.envoy.answering import FAILED, Deny, Forward, answer_to, answer_to_error
from tidegate_server.envoy.asking import InvalidBody, admit_request, read_body
from tidegate_server.rpc.guard import Context, current_caller

log = logging.getLogger("tidegate.envoy")

Admit = Callable[[admission_pb2.AdmitRequest, Context], Awaitable[admission_pb2.AdmitResponse]]
ExitHop = Callable[[Caller, flow_pb2.HopGrant, bool], Awaitable[None]]
"""Ends that caller's hop; whether it succeeded. Raises nothing."""

Counted = Callable[[], AbstractContextManager[None]]
"""Counts a decision as one call that runs, as long as it is made. Raises Overloaded, ShuttingDown."""

BUFFERED = processing_mode_pb2.ProcessingMode.BUFFERED
OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
STATUS = ":status"


class Decided(NamedTuple):
    """What became of a request, and what ends the hop that was entered with it."""

    answer: Forward | Deny
    body: bytes = b""
    exit_hop: Callable[[bool], Awaitable[None]] | None = None


class ExternalProcessorServicer(rpc.ExternalProcessorServicer):  # type: ignore[misc] # xds-protos ships no types
    """One stream an HTTP request."""

    def __init__(self, admit: Admit, exit_hop: ExitHop, counted: Counted) -> None:
        self._admit = admit
        self._exit_hop = exit_hop
        self._counted = counted

    async def Process(
        self, request_iterator: AsyncIterator[wire.ProcessingRequest], context: Context
    ) -> AsyncIterator[wire.ProcessingResponse]:
        """Answer each part of one HTTP request as it comes. A hop that was entered ends with the stream."""
        headers: dict[str, str] = {}
        decided, success, mode = None, False, None
        try:
            async for message in request_iterator:
                if message.HasField("protocol_config"):
                    mode = message.protocol_config.request_body_mode
                part = message.WhichOneof("request")
                if part == "request_headers":
                    headers = joined(message.request_headers.headers)
                    if message.request_headers.end_of_stream:
                        yield immediate(answer_to_error(InvalidBody("is missing")))
                        return
                    yield wire.ProcessingResponse(request_headers=wire.HeadersResponse())
                elif part == "request_body":
                    body = message.request_body
                    is_whole = (
                        body.end_of_stream if mode is None else mode == BUFFERED
                    )  # older ones do not tell the mode
                    decided = await self._decide(headers, body.body, context) if is_whole else _partial()
                    yield request_answer(decided)
                    if isinstance(decided.answer, Deny):
                        return
                elif part == "response_headers" and decided is not None and isinstance(decided.answer, Forward):
                    success = joined(message.response_headers.headers).get(STATUS, "").startswith("2")
                    yield wire.ProcessingResponse(response_headers=shown(decided.answer))
                else:
                    yield wire.ProcessingResponse(**{part: _UNCHANGED[part]()} if part in _UNCHANGED else {})
        finally:
            if decided is not None and decided.exit_hop is not None:
                await decided.exit_hop(success)

    async def _decide(self, headers: Mapping[str, str], body: bytes, context: Context) -> Decided:
        """The decision on a request; an error of ours is one that forbids it."""
        try:
            with self._counted():
                asked = read_body(body)
                request = admit_request(headers, len(body), asked)
                if not asked.model:
                    raise InvalidBody("names no model")
                response = await self._admit(request, context)
                answer = answer_to(response)
                # Bound to the caller here: where a stream is torn down, nobody knows any more whose it was.
                exit_hop = partial(self._exit_hop, current_caller(), response.hop) if response.HasField("hop") else None
                if isinstance(answer, Deny):
                    return Decided(answer, exit_hop=exit_hop)
                effort = response.reasoning_effort if response.reasoning_effort_mapped else ""
                return Decided(answer, asked.for_provider(response.binding.model, effort), exit_hop)
        except Exception as error:  # noqa: BLE001 - told to the caller, and logged where it is none of its doing
            return Decided(answer_to_error(error))


def _partial() -> Decided:
    log.error("Envoy does not send whole bodies: set processing_mode.request_body_mode to BUFFERED")
    return Decided(FAILED)


def joined(headers: base_pb2.HeaderMap) -> dict[str, str]:
    """The headers by their names in lower case; several values of one name are joined by commas."""
    found: dict[str, list[str]] = {}
    for header in headers.headers:
        value = header.raw_value.decode("utf-8", "surrogateescape") if header.raw_value else header.value
        found.setdefault(header.key.lower(), []).append(value)
    return {name: ",".join(values) for name, values in found.items()}


def request_answer(decided: Decided) -> wire.ProcessingResponse:
    """What Envoy does with the request."""
    answer = decided.answer
    if isinstance(answer, Deny):
        return immediate(answer)
    headers = {**answer.headers, "content-length": str(len(decided.body))}
    return wire.ProcessingResponse(
        request_body=wire.BodyResponse(
            response=wire.CommonResponse(
                status=wire.CommonResponse.CONTINUE,
                header_mutation=wire.HeaderMutation(set_headers=options(headers), remove_headers=answer.removed),
                body_mutation=wire.BodyMutation(body=decided.body),
                clear_route_cache=True,  # the upstream is chosen by a header that is new
            )
        )
    )


def shown(answer: Forward) -> wire.HeadersResponse:
    """The response's headers, with those of the decision."""
    mutation = wire.HeaderMutation(set_headers=options(answer.shown))
    return wire.HeadersResponse(response=wire.CommonResponse(header_mutation=mutation))


def immediate(answer: Deny) -> wire.ProcessingResponse:
    """An answer in place of the provider's."""
    return wire.ProcessingResponse(
        immediate_response=wire.ImmediateResponse(
            status=http_status_pb2.HttpStatus(code=answer.status),
            headers=wire.HeaderMutation(set_headers=options(answer.headers)),
            body=answer.body,
            details=f"tidegate_{answer.code}",
        )
    )


def options(headers: Mapping[str, str]) -> list[base_pb2.HeaderValueOption]:
    """Headers that replace what is there under their names."""
    return [
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=name, raw_value=value.encode()), append_action=OVERWRITE
        )
        for name, value in headers.items()
    ]


_UNCHANGED = {
    "response_headers": wire.HeadersResponse,
    "response_body": wire.BodyResponse,
    "request_trailers": wire.TrailersResponse,
    "response_trailers": wire.TrailersResponse,
}
"""What passes as it is, if Envoy is told to ask about it."""


def add_to(server: grpc.aio.Server, servicer: ExternalProcessorServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_ExternalProcessorServicer_to_server(servicer, server)
    return str(wire.DESCRIPTOR.services_by_name["ExternalProcessor"].full_name)
