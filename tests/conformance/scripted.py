"""A server that answers Admit as a vector says, and counts its calls (tests/vectors/clients/README.md)."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.json_format import ParseDict
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from tidegate.v1 import admission_pb2

Json = dict[str, Any]
METHOD = "/tidegate.v1.AdmissionService/Admit"
PATIENCE = 30.0
"""Seconds that a late answer is held back at most, should its caller never go away."""


class Script(grpc.GenericRpcHandler):
    """What is said to the first, second, … call; the last answer is repeated."""

    def __init__(self) -> None:
        self._answers: Sequence[Json] = ()
        self.calls = 0

    def play(self, answers: Sequence[Json]) -> None:
        """Begin with these."""
        self._answers, self.calls = answers, 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Serve Admit alone; bytes in, bytes out."""
        if handler_call_details.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(self._admit)

    def _admit(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        answer = self._answers[min(self.calls, len(self._answers) - 1)]
        self.calls += 1
        if answer.get("late"):
            gone = threading.Event()
            if context.add_callback(gone.set):
                assert gone.wait(PATIENCE), "the caller waits without a deadline"
        if "status" in answer:
            context.abort_with_status(rpc_status.to_status(status_of(answer)))
        if "bytes" in answer:
            return bytes.fromhex(answer["bytes"])
        return ParseDict(answer["response"], admission_pb2.AdmitResponse()).SerializeToString()


def status_of(answer: Json) -> status_pb2.Status:
    """The status with the details of a Tidegate server."""
    details = []
    if "reason" in answer:
        metadata = answer.get("metadata", {})
        details.append(error_details_pb2.ErrorInfo(reason=answer["reason"], domain="tidegate", metadata=metadata))
    if "retryDelay" in answer:
        delay = ParseDict(answer["retryDelay"], duration_pb2.Duration())
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if "fields" in answer:
        violation = error_details_pb2.BadRequest.FieldViolation
        faults = [violation(field=field, description="is wrong") for field in answer["fields"]]
        details.append(error_details_pb2.BadRequest(field_violations=faults))
    packed = [any_pb2.Any() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    code: int = grpc.StatusCode[answer["status"]].value[0]
    return status_pb2.Status(code=code, message=answer.get("message", "as the vector says"), details=packed)


@contextmanager
def serving() -> Iterator[tuple[str, Script]]:
    """A scripted server on a port of its own."""
    script = Script()
    server = grpc.server(ThreadPoolExecutor(8), handlers=[script], options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", script
    finally:
        server.stop(None).wait()
