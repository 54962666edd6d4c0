"""From an HTTP request that Envoy shows to the admission that it asks for.

Two kinds of headers are read. The caller's own name the conversation. Those that begin with `x-gateway-` are the
gateway's: Envoy removes a caller's early, so that only its own filters (jwt_authn, header_mutation) can have set them.
"""

from collections.abc import Mapping

from tidegate.v1 import admission_pb2, flow_pb2

from tidegate_server.envoy.inference_body import InferenceBody
from tidegate_server.envoy.json_body import InvalidJson
from tidegate_server.errors import FieldViolation, InvalidRequest

WORKER = ("thread-id", "x-thread-id", "session-id", "x-session-id", "thread_id", "session_id")
"""The conversation, in the order of preference; then `metadata.thread_id` and `metadata.session_id` of the body."""

COMPACTION = "x-tidegate-compaction"
REQUIRE_PIN = "x-tidegate-require-pin"
PROVIDER_STATE = "x-tidegate-provider-state"

MODEL = "x-gateway-model"
TENANT = "x-gateway-tenant"
AGENT = "x-gateway-agent"
TARGET_AGENT = "x-gateway-target-agent"
PROFILE = "x-gateway-flow-profile"

INPUTS = (COMPACTION, REQUIRE_PIN, PROVIDER_STATE, MODEL, TENANT, AGENT, TARGET_AGENT, PROFILE)
"""What was said to us alone, and goes no further."""

COMPACT_PATH = "/compact"
"""How the path of a request ends that compacts its conversation (`POST /v1/responses/compact`)."""

_SWITCH = {"": False, "false": False, "true": True}


class InvalidBody(InvalidRequest):
    """The body cannot be understood."""

    def __init__(self, reason: str) -> None:
        super().__init__([FieldViolation("body", reason)])


def read_body(body: bytes) -> InferenceBody:
    """The body of an inference request. Raises InvalidBody."""
    try:
        return InferenceBody(body)
    except InvalidJson as error:
        raise InvalidBody(str(error)) from None


def admit_request(
    headers: Mapping[str, str], request_bytes: int | None, body: InferenceBody | None
) -> admission_pb2.AdmitRequest:
    """The admission that a request asks for. Raises InvalidRequest.

    `headers` have names in lower case, with several values of one name joined by commas, and Envoy's `:path`.
    `request_bytes` is the body's exact size; None: it is not known. `body` None: it was not shown.
    """
    try:
        request = admission_pb2.AdmitRequest(
            model=headers.get(MODEL) or (body.model if body is not None else ""),
            worker_id=_worker_id(headers, body),
            request_bytes=request_bytes,
            reasoning_effort="" if body is None else body.reasoning_effort,
            compaction=_switch(headers, COMPACTION) or _path(headers).endswith(COMPACT_PATH),
            provider_state=headers.get(PROVIDER_STATE) or ("" if body is None else body.provider_state),
            input_modalities=() if body is None else body.input_modalities,
            request_id=headers.get("x-request-id", ""),
            tenant=headers.get(TENANT, ""),
            require_pin=_switch(headers, REQUIRE_PIN),
        )
    except InvalidJson as error:
        raise InvalidBody(str(error)) from None
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can write it, UTF-8 cannot
        raise InvalidBody("has text that is no Unicode") from None
    _add_flow(request, headers)
    return request


def _worker_id(headers: Mapping[str, str], body: InferenceBody | None) -> str:
    named = next((headers[name] for name in WORKER if headers.get(name)), "")
    return named or ("" if body is None else body.worker_id)


def _path(headers: Mapping[str, str]) -> str:
    return headers.get(":path", "").partition("?")[0]


def _switch(headers: Mapping[str, str], name: str) -> bool:
    text = headers.get(name, "").lower()
    if text not in _SWITCH:
        raise InvalidRequest([FieldViolation(name, "must be true or false")])
    return _SWITCH[text]


def _add_flow(request: admission_pb2.AdmitRequest, headers: Mapping[str, str]) -> None:
    """A target is a hop to enter; an agent alone asks within its own hop; neither: the request belongs to no flow."""
    agent, target = headers.get(AGENT, ""), headers.get(TARGET_AGENT, "")
    if not agent and not target:
        return
    traceparent, tracestate = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not traceparent:  # checked here, because in its place the call's own metadata would count: Envoy's span
        raise InvalidRequest([FieldViolation("traceparent", "is missing; an agent's request belongs to a flow")])
    if target:
        request.hop.CopyFrom(
            flow_pb2.EnterHopRequest(
                traceparent=traceparent,
                tracestate=tracestate,
                caller_agent=agent,
                target_agent=target,
                profile=headers.get(PROFILE, ""),
            )
        )
    else:
        request.flow.CopyFrom(flow_pb2.FlowCheck(traceparent=traceparent, tracestate=tracestate, agent=agent))
