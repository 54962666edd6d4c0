"""A server that answers Admit and AdmitBatch as a vector says, and counts both (tests/vectors/clients/README.md)."""

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
from tidegate.v1 import admission_pb2, types_pb2

Json = dict[str, Any]
ADMIT, ADMIT_BATCH = (f"/tidegate.v1.AdmissionService/{method}" for method in ("Admit", "AdmitBatch"))
PATIENCE = 30.0
"""Seconds that a late answer is held back at most, should its caller never go away."""


class Script(grpc.GenericRpcHandler):
    """What is said to the first, second, … call; the last answer is repeated. Admit and AdmitBatch have a count each.

    A batch gets one result for each of its requests, the same for all. What is no answer is an error of each item, or,
    with `whole`, the status of the batch itself.
    """

    def __init__(self) -> None:
        self._answers: Sequence[Json] = ()
        self._whole = False
        self.calls = 0
        """Of Admit."""
        self.rides = 0
        """Of AdmitBatch."""

    def play(self, answers: Sequence[Json], *, whole: bool = False) -> None:
        """Begin with these."""
        self._answers, self._whole, self.calls, self.rides = answers, whole, 0, 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Serve Admit and AdmitBatch alone; bytes in, bytes out."""
        behaviour = {ADMIT: self._admit, ADMIT_BATCH: self._admit_batch}.get(handler_call_details.method)
        return behaviour and grpc.unary_unary_rpc_method_handler(behaviour)

    def _admit(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        answer = self._in_time(self.calls)
        self.calls += 1
        wait_if_late(answer, context)
        if "status" in answer:
            context.abort_with_status(rpc_status.to_status(status_of(answer)))
        return response_of(answer)

    def _admit_batch(self, batch: bytes, context: grpc.ServicerContext) -> bytes:
        answer = self._in_time(self.rides)
        self.rides += 1
        wait_if_late(answer, context)
        if "status" not in answer:
            result = field(1, response_of(answer))
        elif self._whole:
            context.abort_with_status(rpc_status.to_status(status_of(answer)))
        else:
            said = status_of(answer)
            error = types_pb2.ItemError(code=said.code, reason=answer.get("reason", ""), message=said.message)
            result = admission_pb2.AdmitBatchResult(error=error).SerializeToString()
        return field(1, result) * len(admission_pb2.AdmitBatchRequest.FromString(batch).requests)

    def _in_time(self, call: int) -> Json:
        return self._answers[min(call, len(self._answers) - 1)]


def wait_if_late(answer: Json, context: grpc.ServicerContext) -> None:
    """Hold a late answer back until its caller is gone."""
    gone = threading.Event()
    if answer.get("late") and context.add_callback(gone.set):
        assert gone.wait(PATIENCE), "the caller waits without a deadline"


def response_of(answer: Json) -> bytes:
    """The AdmitResponse, or what stands in its place on the wire."""
    if "bytes" in answer:
        return bytes.fromhex(answer["bytes"])
    return ParseDict(answer["response"], admission_pb2.AdmitResponse()).SerializeToString()


def field(number: int, content: bytes) -> bytes:
    """A field of the wire that holds these bytes, be they a message or not."""
    assert len(content) < 1 << 14
    size = len(content)
    length = bytes([size]) if size < 1 << 7 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + content


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
