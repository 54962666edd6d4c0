"""Runs the Python client on behalf of the conformance suite: one operation a line as JSON, and what came of it.

It is the blocking client; only what coalesces is the asyncio one.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from tidegate import (
    Admission,
    AdmitOptions,
    AsyncClient,
    Client,
    TidegateError,
    Tls,
    TraceContext,
    http_answer,
    inject_trace,
    trace_from_headers,
)
from tidegate.flow import HopRefused, agent_call
from tidegate.v1 import admission_pb2, flow_pb2

Json = dict[str, Any]


class Runner:
    """One client, and the hops that it has entered."""

    def __init__(self, client: Client, forwardable: Callable[..., Admission], open_hops: ExitStack) -> None:
        self._client = client
        self._forwardable = forwardable
        self._hops: dict[str, flow_pb2.HopGrant] = {}
        self._open = open_hops

    def run(self, o: Json) -> Json:
        """Carry out one operation."""
        match o["op"]:
            case "admit":
                return self._admit(o)
            case "pin":
                request = ParseDict(o["request"], admission_pb2.PinRequest())
                return answered(lambda: self._client.call(self._client._admission.Pin, request, o.get("timeout")))
            case "trace":
                return {"trace": trace_from_headers(pairs(o))._asdict()}
            case "inject":
                headers = dict(pairs(o))
                inject_trace(TraceContext(**{"traceparent": "", "tracestate": "", **o["trace"]}), headers)
                return {"headers": list(headers.items())}
            case "enterHop":
                return self._enter(o)
            case "recordTokens":
                record = flow_pb2.RecordTokensRequest(**self._place(o))
                return answered(lambda: self._client.flows.record_tokens(record))
            case "exitHop":
                leave = flow_pb2.ExitHopRequest(**self._place(o), success=o.get("success", False))
                return answered(lambda: self._client.flows.exit_hop(leave))
            case other:
                return {"unknown": other}

    def _admit(self, o: Json) -> Json:
        """Places the request in the flow of the headers, where there are any, as a gateway does."""
        request = ParseDict(o["request"], admission_pb2.AdmitRequest())
        trace = trace_from_headers(pairs(o))
        if request.HasField("flow") and not request.flow.traceparent and trace.traceparent:
            request.flow.traceparent, request.flow.tracestate = trace
        given = {field.name: value for field, value in request.ListFields()}
        model, worker = given.pop("model", ""), given.pop("worker_id", "")
        size = request.request_bytes if request.HasField("request_bytes") else None
        given.pop("request_bytes", None)
        options = cast("AdmitOptions", given)
        answer = self._forwardable(model, worker, size, timeout=o.get("timeout"), **options)
        if answer.error is None or answer.response.verdict:
            said: Json = {"response": MessageToDict(answer.response)}
        else:
            said = failure(answer.error)
        if not answer.may_forward:
            return {**said, "forward": False, "http": http(answer)}
        if answer.hop:
            self._hops[answer.hop.hop_id] = answer.hop
        return {**said, "forward": True, "binding": MessageToDict(answer.binding)}  # type: ignore[arg-type]

    def _enter(self, o: Json) -> Json:
        trace, headers = trace_from_headers(pairs(o)), dict(pairs(o))
        request = ParseDict(o["request"], flow_pb2.EnterHopRequest())
        given = {field.name: value for field, value in request.ListFields()}
        target = given.pop("target_agent", "")
        call = agent_call(self._client, trace.traceparent, target, tracestate=trace.tracestate, **given)
        try:
            hop = self._open.enter_context(call)  # the suite itself says when the hop is left
        except (HopRefused, TidegateError) as error:
            return {**failure(error), "granted": False, "http": http(error)}
        inject_trace(TraceContext(**hop.headers), headers)
        self._hops[hop.grant.hop_id] = hop.grant
        return {"granted": True, "response": MessageToDict(hop.grant), "headers": list(headers.items())}

    def _place(self, o: Json) -> Json:
        grant = self._hops[o["hop"]]
        trace = {"traceparent": grant.traceparent, "tracestate": grant.tracestate}
        return {**trace, "hop_id": grant.hop_id, "tokens": o.get("tokens", 0)}


def answered(call: Callable[[], Message]) -> Json:
    """The response, or what stands in its place."""
    try:
        return {"response": MessageToDict(call())}
    except TidegateError as error:
        return failure(error)


def failure(error: Exception) -> Json:
    """What stands in the place of a response."""
    if isinstance(error, HopRefused):
        return {"refusal": MessageToDict(error.refusal)}
    assert isinstance(error, TidegateError)
    fields = [violation.field for violation in error.violations]
    return {"error": {"status": error.code.name, "reason": error.reason, "fields": fields}}


def http(reason: Any) -> Json:
    """What the gateway's own caller would get."""
    answer = http_answer(reason)
    return {"status": answer.status, "headers": list(answer.headers.items()), "body": json.loads(answer.body)}


def pairs(o: Json) -> list[tuple[str, str]]:
    """The headers of an operation."""
    return [(name, value) for name, value in o.get("headers") or ()]


def tls_of(environ: Mapping[str, str]) -> Tls | None:
    """How the connection is protected."""
    if "TIDEGATE_CA" not in environ:
        return None
    named = {"ca": "TIDEGATE_CA", "certificate": "TIDEGATE_CERTIFICATE", "key": "TIDEGATE_KEY"}
    files = {name: environ.get(variable) or None for name, variable in named.items()}
    return Tls(**files, server_name=environ.get("TIDEGATE_SERVER_NAME", ""))


@contextmanager
def coalescing(tls: Tls | None) -> Iterator[Callable[..., Admission]]:
    """`forwardable` of an asyncio client whose admissions ride in AdmitBatch."""
    with asyncio.Runner() as loop:

        async def opened() -> AsyncClient:
            return AsyncClient(tls=tls, coalesce=True)

        client = loop.run(opened())
        yield lambda *request, **options: loop.run(client.forwardable(*request, **options))
        loop.run(client.close())


def main() -> None:
    """Until the suite closes the pipe."""
    tls = tls_of(os.environ)
    with ExitStack() as stack:
        client = stack.enter_context(Client(tls=tls))
        coalesces = "TIDEGATE_COALESCE" in os.environ
        forwardable = stack.enter_context(coalescing(tls)) if coalesces else client.forwardable
        runner = Runner(client, forwardable, stack.enter_context(ExitStack()))
        for line in sys.stdin:
            sys.stdout.write(json.dumps(runner.run(json.loads(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
