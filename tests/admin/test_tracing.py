"""Traces of a real server, as an OpenTelemetry collector on loopback receives them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tidegate.v1 import admission_pb2, flow_pb2
from tidegate_server.wiring import tracing

from tests.admin.scene import TRACES, Http, admin
from tests.integration.server.harness import failure, health

PARENT = "00f067aa0ba902b7"
CONTEXT = f"00-{TRACES[0]}-{PARENT}-01"


class Collector(ThreadingHTTPServer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Keep)
        self.spans: list[Any] = []
        self.services: set[str] = set()


class _Keep(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.server.services.add(about["service.name"])
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def said(span: Any) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value or a.value.bool_value for a in span.attributes}


async def ask(http: Http) -> None:
    served = http.served
    await served.report(health())
    request = admission_pb2.AdmitRequest(model="managed/local", worker_id="secret-worker", request_bytes=1)
    await served.admission.Admit(request, metadata=(("traceparent", CONTEXT), ("tracestate", "vendor=1")))
    await served.admission.AdmitBatch(admission_pb2.AdmitBatchRequest(requests=[request, request]))
    within = flow_pb2.FlowCheck(traceparent=f"00-{TRACES[1]}-{PARENT}-01", agent="nobody")
    request.flow.CopyFrom(within)
    await served.admission.Admit(request)
    await failure(served.admit("nobody-knows-it"))


async def test_admissions_are_spans_of_their_callers_trace(tmp_path: Path, collector: Collector) -> None:
    async with admin(tmp_path) as http:
        await ask(http)
    spans = {span.span_id: span for span in collector.spans}
    single, batch, refused, unknown = sorted(spans.values(), key=lambda span: int(span.start_time_unix_nano))
    assert (single.trace_id.hex(), single.parent_span_id.hex()) == (TRACES[0], PARENT)
    assert single.trace_state == "vendor=1"
    assert single.name == "tidegate.v1.AdmissionService/Admit"
    told = said(single)
    assert (told["tidegate.route"], told["tidegate.verdict"]) == ("managed/local", "VERDICT_ADMITTED")
    assert told["tidegate.candidate"] == "qwen/qwen-next"
    assert told["tidegate.decision_id"]
    assert batch.parent_span_id == b""
    assert (said(batch)["tidegate.batch.size"], said(batch)["tidegate.batch.admitted"]) == (2, 2)
    assert refused.trace_id.hex() == TRACES[1]
    assert said(refused)["tidegate.reason"] == "REFUSAL_REASON_FLOW_UNKNOWN"
    assert said(unknown)["error.type"] == "MODEL_NOT_FOUND"
    assert unknown.status.code == unknown.status.STATUS_CODE_ERROR
    assert "secret-worker" not in str(collector.spans)
    assert collector.services == {"tidegate"}


async def test_an_invalid_trace_context_begins_a_trace_of_its_own(tmp_path: Path, collector: Collector) -> None:
    async with admin(tmp_path) as http:
        await http.served.report(health())
        request = admission_pb2.AdmitRequest(model="managed/local", worker_id="w", request_bytes=1)
        await http.served.admission.Admit(request, metadata=(("traceparent", "00-zero-none-01"),))
    (span,) = collector.spans
    assert span.parent_span_id == b""


async def test_nothing_is_traced_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    async with AsyncExitStack() as stack:
        assert tracing.open_tracing({}, stack) == ()
