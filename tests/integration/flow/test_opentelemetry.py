"""A chain of agents with OpenTelemetry: real spans in between, real propagators, each agent sees its headers alone."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tidegate.v1 import flow_pb2

from tests.integration.flow.serving import Served

Headers = dict[str, str]


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


class Agent:
    """An instrumented agent: a server span around its work, inner spans, a client span around each call it makes."""

    def __init__(self, name: str, exporter: InMemorySpanExporter) -> None:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.name = name
        self.tracer = provider.get_tracer(name)
        self.propagator: TextMapPropagator = CompositePropagator([TraceContextTextMapPropagator()])

    def headers_for_next_call(self, received: Headers, spans_between: int) -> Headers:
        """What an agent that was called with `received` sends on, from under some spans of its own."""
        context = self.propagator.extract(received)
        for depth in range(spans_between):
            span = self.tracer.start_span(f"{self.name}-{depth}", context)
            context = trace.set_span_in_context(span, context)
            span.end()
        sent: Headers = {}
        self.propagator.inject(sent, context)
        return sent


async def enter(served: Served, caller: str, target: str, headers: Headers) -> flow_pb2.EnterHopResponse:
    return await served.enter(
        caller, target, traceparent=headers["traceparent"], tracestate=headers.get("tracestate", "")
    )


def headers(grant: flow_pb2.HopGrant) -> Headers:
    return {"traceparent": grant.traceparent, "tracestate": grant.tracestate}


async def test_a_chain_with_spans_in_between_is_followed_exactly(served: Served, spans: InMemorySpanExporter) -> None:
    agents = {name: Agent(name, spans) for name in ("gateway", "A", "B", "C")}
    first = agents["gateway"].headers_for_next_call({}, 2)
    assert "tracestate" not in first
    grants: dict[str, flow_pb2.HopGrant] = {}
    received = first
    for depth, (caller, target) in enumerate((("", "A"), ("A", "B"), ("B", "C")), 1):
        answer = await enter(served, caller, target, received)
        grant = grants[target] = answer.grant
        assert (grant.depth, list(grant.chain)) == (depth, ["A", "B", "C"][:depth])
        received = agents[target].headers_for_next_call(headers(grant), spans_between=depth)
        assert received["traceparent"].split("-")[2] != grant.hop_id, "spans stood in between"
        assert received["tracestate"] == grant.tracestate
    cycle = await enter(served, "C", "A", received)
    assert "A → B → C → A" in cycle.refusal.message
    parallel = agents["A"].headers_for_next_call(headers(grants["A"]), 4)
    for _ in range(3):
        sibling = await enter(served, "A", "B", parallel)
        assert (sibling.grant.depth, list(sibling.grant.chain)) == (2, ["A", "B"])
    trace_ids = {format(span.context.trace_id, "032x") for span in spans.get_finished_spans() if span.context}
    assert trace_ids == {grants["A"].flow_id}, "one trace, one flow"
    hop_ids = {grant.hop_id for grant in grants.values()}
    parents = {format(span.parent.span_id, "016x") for span in spans.get_finished_spans() if span.parent}
    assert hop_ids <= parents, "an agent's first span hangs on its hop"


async def test_members_of_other_vendors_travel_on_beside_ours(served: Served, spans: InMemorySpanExporter) -> None:
    agent = Agent("A", spans)
    start = {"traceparent": agent.headers_for_next_call({}, 1)["traceparent"], "tracestate": "rojo=1,congo=t61"}
    a = (await enter(served, "", "A", start)).grant
    sent = agent.headers_for_next_call(headers(a), 3)
    b = (await enter(served, "A", "B", sent)).grant
    assert b.tracestate.split(",")[1:] == ["rojo=1", "congo=t61"]
    assert b.depth == 2


async def test_an_agent_that_loses_the_tracestate_is_found_by_its_open_hop(
    served: Served, spans: InMemorySpanExporter
) -> None:
    agent = Agent("A", spans)
    a = (await enter(served, "", "A", agent.headers_for_next_call({}, 1))).grant
    b = (await enter(served, "A", "B", headers(a))).grant
    bare = {"traceparent": agent.headers_for_next_call(headers(b), 2)["traceparent"]}
    assert list((await enter(served, "B", "C", bare)).grant.chain) == ["A", "B", "C"]
