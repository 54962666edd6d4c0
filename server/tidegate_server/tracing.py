"""Traces of admissions, for the extra `otel`: a span for each Admit and AdmitBatch under the caller's trace.

A gRPC interceptor between the guard and the servicer, there only when traces are wanted: without it a call pays
nothing. A span says what was asked for and what the answer was; never who the worker is.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tidegate.v1 import admission_pb2, types_pb2

from tidegate_server.rpc.status import outcome_of

SERVICE = "tidegate.v1.AdmissionService"
TRACED: dict[str, type[admission_pb2.AdmitResponse] | type[admission_pb2.AdmitBatchResponse]] = {
    "Admit": admission_pb2.AdmitResponse,
    "AdmitBatch": admission_pb2.AdmitBatchResponse,
}
"""The methods, and what their answers are: the servicer gives them as bytes."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Answer: TypeAlias = admission_pb2.AdmitResponse | admission_pb2.AdmitBatchResponse
Asked: TypeAlias = admission_pb2.AdmitRequest | admission_pb2.AdmitBatchRequest

_PROPAGATOR = TraceContextTextMapPropagator()
_HEADERS = ("traceparent", "tracestate")


class TracedAdmissions(grpc.aio.ServerInterceptor):
    """Makes the spans. It belongs behind the guard: what the guard refuses is no admission."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Answer with the traced handler of an admission, with any other as it is."""
        handler = await continuation(handler_call_details)
        service, _, name = handler_call_details.method.removeprefix("/").partition("/")
        if handler is None or service != SERVICE or name not in TRACED:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._traced(handler.unary_unary, name), handler.request_deserializer, handler.response_serializer
        )

    def _traced(self, behavior: Any, name: str) -> Any:
        async def traced(request: Asked, context: Any) -> bytes:
            span = self._tracer.start_span(
                f"{SERVICE}/{name}",
                parent_of(request, context.invocation_metadata() or ()),
                SpanKind.SERVER,
                {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": name},
            )
            try:
                answer: bytes = await behavior(request, context)
                if span.is_recording():
                    _describe(span, request, TRACED[name].FromString(answer))
            except Exception as error:
                reason = outcome_of(error).reason
                span.set_attribute("error.type", reason)
                span.set_status(Status(StatusCode.ERROR, reason))
                raise
            finally:
                span.end()
            return answer

        return traced


def parent_of(request: Asked, metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext:
    """The caller's span: of the call's metadata, else of the flow context in the message, else none."""
    carrier = {key: value for key, value in metadata if key in _HEADERS and isinstance(value, str)}
    if "traceparent" not in carrier and isinstance(request, admission_pb2.AdmitRequest):
        which = request.WhichOneof("flow_context")
        place = request.hop if which == "hop" else request.flow
        carrier = {"traceparent": place.traceparent, "tracestate": place.tracestate} if which else {}
    return _PROPAGATOR.extract(carrier, TraceContext())


def _describe(span: Span, request: Asked, answer: Answer) -> None:
    if isinstance(answer, admission_pb2.AdmitResponse):
        assert isinstance(request, admission_pb2.AdmitRequest)
        span.set_attributes(
            {
                "tidegate.route": request.model,
                "tidegate.verdict": types_pb2.Verdict.Name(answer.verdict),
                "tidegate.decision_id": answer.decision_id,
                "tidegate.dry_run": request.dry_run,
            }
        )
        if answer.HasField("refusal"):
            span.set_attribute("tidegate.reason", types_pb2.RefusalReason.Name(answer.refusal.reason))
        if answer.HasField("binding"):
            span.set_attribute("tidegate.candidate", answer.binding.candidate)
            span.set_attribute("tidegate.provider", answer.binding.provider)
        return
    verdicts = Counter(
        types_pb2.Verdict.Name(item.response.verdict) if item.HasField("response") else "error"
        for item in answer.results
    )
    span.set_attribute("tidegate.batch.size", len(answer.results))
    for verdict, count in verdicts.items():
        span.set_attribute(f"tidegate.batch.{verdict.removeprefix('VERDICT_').lower()}", count)
