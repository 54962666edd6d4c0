"""Traces are off unless OpenTelemetry's own variables say where to send them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import grpc

from tidegate_server import __version__

log = logging.getLogger("tidegate.tracing")

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def open_tracing(environment: Mapping[str, str], stack: AsyncExitStack) -> Sequence[grpc.aio.ServerInterceptor]:
    """The interceptor that traces, or none. What is not sent yet is sent when the stack is left.

    Without the extra `otel` a server serves untraced, and warns.
    """
    if not any(environment.get(name) for name in ENDPOINTS):
        return ()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        from tidegate_server.tracing import TracedAdmissions  # noqa: PLC0415
    except ImportError as error:
        log.warning("traces are asked for, and the extra otel is not installed (%s is missing)", error.name)
        return ()
    about = {"service.version": __version__}
    if "OTEL_SERVICE_NAME" not in environment:
        about["service.name"] = "tidegate"
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    stack.push_async_callback(asyncio.to_thread, provider.shutdown)
    return (TracedAdmissions(provider.get_tracer("tidegate", __version__)),)
