"""The services that Envoy speaks to, where the extra `envoy` is installed."""

import logging
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

import grpc
from tidegate.v1 import admission_pb2, flow_pb2

from tidegate_server.core.model import Caller
from tidegate_server.errors import TidegateError
from tidegate_server.rpc.guard import Context, Guard
from tidegate_server.usecases.flows import FlowGuard

Admit = Callable[[admission_pb2.AdmitRequest, Context], Awaitable[admission_pb2.AdmitResponse | bytes]]
"""AdmissionService's own method, whose answer may be serialized already."""

log = logging.getLogger("tidegate.envoy")


def add_envoy_services(server: grpc.aio.Server, admit: Admit, flows: FlowGuard, guard: Guard) -> list[str]:
    """Serve them beside our own; return their full names. Without the extra there are none."""
    if not _is_installed():
        return []
    from tidegate_server.envoy import ext_authz, ext_proc  # noqa: PLC0415 - an extra, and a tenth of a second

    async def decide(request: admission_pb2.AdmitRequest, context: Context) -> admission_pb2.AdmitResponse:
        answer = await admit(request, context)
        return admission_pb2.AdmitResponse.FromString(answer) if isinstance(answer, bytes) else answer

    async def exit_hop(caller: Caller, hop: flow_pb2.HopGrant, success: bool) -> None:
        try:
            await flows.exit(hop.traceparent, hop.hop_id, 0, success, caller)
        except TidegateError as error:  # the flow's time ends it
            log.warning("a hop could not be closed: %s", error)

    return [
        ext_proc.add_to(server, ext_proc.ExternalProcessorServicer(decide, exit_hop, guard.counted)),
        ext_authz.add_to(server, ext_authz.AuthorizationServicer(decide)),
    ]


def _is_installed() -> bool:
    try:
        return find_spec("envoy.service.ext_proc.v3") is not None
    except ModuleNotFoundError:
        return False
