"""Servers that Envoy asks in Tidegate's place, and that answer wrongly, late, or not at all."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from grpc_health.v1 import health_pb2
from tidegate.v1 import admission_pb2
from tidegate_server.envoy import ext_authz, ext_proc
from tidegate_server.rpc.guard import Context

from tests.gateways.envoy_proxy.support import PATIENCE

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHECK = "/envoy.service.auth.v3.Authorization/Check"
HEALTH = "/grpc.health.v1.Health/Check"
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()

LATE = "late"
END = "the stream ends"
Answer = bytes | grpc.StatusCode | str


class Script(grpc.GenericRpcHandler):
    """What is answered to the request's headers, then to its body; to a Check the last one."""

    def __init__(self) -> None:
        self._answers: Sequence[Answer] = ()
        self.calls = 0

    def play(self, *answers: Answer) -> None:
        """Begin with these."""
        self._answers, self.calls = answers, 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Bytes in, bytes out."""
        if handler_call_details.method == HEALTH:
            return grpc.unary_unary_rpc_method_handler(lambda *_: SERVING)
        if handler_call_details.method == PROCESS:
            return grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.unary_unary_rpc_method_handler(self._check)

    def _process(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.calls += 1
        for _, answer in zip(requests, self._answers, strict=False):
            if answer == END:
                return
            yield self._play(answer, context)

    def _check(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        return self._play(self._answers[-1], context)

    def _play(self, answer: Answer, context: grpc.ServicerContext) -> bytes:
        if answer == LATE:
            gone = threading.Event()
            if context.add_callback(gone.set):
                assert gone.wait(PATIENCE), "the caller waits without an end"
            return b""
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "as the test says")
        assert isinstance(answer, bytes)
        return answer


@contextmanager
def answering() -> Iterator[tuple[int, Script]]:
    """A scripted server: its port, and the script."""
    script = Script()
    server = grpc.server(ThreadPoolExecutor(8), handlers=[script], options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, script
    finally:
        server.stop(None).wait()


Decide = Callable[[admission_pb2.AdmitRequest], admission_pb2.AdmitResponse]


@contextmanager
def deciding(decide: Decide) -> Iterator[int]:
    """Our own services for Envoy over another decision; their port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    port, server = asyncio.run_coroutine_threadsafe(_serve(decide), loop).result(PATIENCE)
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(None), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(decide: Decide) -> tuple[int, grpc.aio.Server]:
    async def admit(request: admission_pb2.AdmitRequest, _: Context) -> admission_pb2.AdmitResponse:
        return decide(request)

    async def healthy(_: bytes, __: Any) -> bytes:
        return SERVING

    async def no_hop(*_: object) -> None:
        raise AssertionError("there is no hop")

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    method: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"Check": grpc.unary_unary_rpc_method_handler(healthy)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", method),))
    ext_proc.add_to(server, ext_proc.ExternalProcessorServicer(admit, no_hop, _Counted))
    ext_authz.add_to(server, ext_authz.AuthorizationServicer(admit))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, server


class _Counted:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def headers_seen() -> bytes:
    """A right answer to the request's headers."""
    return bytes(wire.ProcessingResponse(request_headers=wire.HeadersResponse()).SerializeToString())


def body_unchanged() -> bytes:
    """An answer to the body that decides nothing: without an admission there is no upstream to go to."""
    return bytes(wire.ProcessingResponse(request_body=wire.BodyResponse()).SerializeToString())
