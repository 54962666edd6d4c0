"""GetFlow, ListFlows, WatchFlows and `tidegate flows`: what is shown of the flows, and of their changes."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from tidegate.v1 import flow_pb2
from tidegate_server.cli import main
from tidegate_server.core.model import SECOND, Caller
from tidegate_server.usecases.flow_status import EventsLost

from tests.integration.flow.serving import TRACE, Served, bearer, rejected


def key(number: int) -> dict[str, Any]:
    return {"traceparent": f"00-{number:032x}-00f067aa0ba902b7-01"}


async def test_a_flow_is_shown_with_its_hops(served: Served) -> None:
    a = await served.grant("", "A", reserve_tokens=10)
    await served.clock.advance(2 * SECOND)
    b = await served.grant("A", "B", a)
    await served.clock.advance(3 * SECOND)
    await served.exit(b, 4, success=False)
    await served.refusal("A", "A", a)
    flow = await served.flow()
    assert (flow.flow_id, flow.root_agent, flow.max_depth_reached) == (TRACE, "A", 2)
    assert (flow.invocations, flow.tokens, flow.open_hops, flow.refusals) == (2, 14, 1, 1)
    left = flow.remaining
    assert (left.depth, left.fan_out, left.tokens, left.time.seconds) == (3, 18, 99_986, 115)
    first, second = flow.hops
    assert (first.hop_id, first.parent_hop_id, first.tokens, first.HasField("success")) == (a.hop_id, "", 10, False)
    assert (second.parent_hop_id, second.caller_agent, second.target_agent) == (a.hop_id, "A", "B")
    assert (second.depth, second.tokens, second.success, second.HasField("success")) == (2, 4, False, True)
    assert second.end_time.seconds - second.start_time.seconds == 3
    assert flow.start_time == first.start_time


async def test_a_flow_that_is_not_there_or_not_named(served: Served) -> None:
    for flow_id, reason in (("", "INVALID_REQUEST"), ("1" * 32, "FLOW_NOT_FOUND"), ("nonsense", "FLOW_NOT_FOUND")):
        error = await rejected(served.flows.GetFlow(flow_pb2.GetFlowRequest(flow_id=flow_id)))
        assert error.reason == reason


async def test_flows_are_listed_page_by_page(served: Served) -> None:
    for number in range(1, 6):
        grant = await served.grant("", "A", **key(number))
        if number == 3:
            await served.exit(grant)
    seen, token = [], ""
    while True:
        page = await served.flows.ListFlows(flow_pb2.ListFlowsRequest(page_size=2, page_token=token))
        seen += [int(flow.flow_id, 16) for flow in page.flows]
        token = page.next_page_token
        if not token:
            break
    assert seen == [5, 4, 3, 2, 1]
    page = await served.flows.ListFlows(flow_pb2.ListFlowsRequest(open_only=True))
    assert [int(flow.flow_id, 16) for flow in page.flows] == [5, 4, 2, 1]
    assert not (await served.flows.ListFlows(flow_pb2.ListFlowsRequest(), metadata=bearer("other"))).flows
    for fields in ({"page_size": -1}, {"page_token": "x"}, {"page_token": "g" * 48}):
        error = await rejected(served.flows.ListFlows(flow_pb2.ListFlowsRequest(**fields)))
        assert error.fields == list(fields)


async def test_a_watch_is_a_snapshot_and_then_the_changes(served: Served) -> None:
    a = await served.grant("", "A")
    await served.grant("", "Z", **key(2))
    watch: Any = served.flows.WatchFlows(flow_pb2.WatchFlowsRequest(flow_id=TRACE))
    first = await watch.read()
    assert first.WhichOneof("event") == "snapshot"
    assert [hop.hop_id for hop in first.snapshot.hops] == [a.hop_id]
    b = await served.grant("A", "B", a)
    await served.grant("", "Y", **key(2))
    await served.refusal("B", "A", b)
    await served.exit(b, 3)
    entered, refused, exited = [await watch.read() for _ in range(3)]
    assert (entered.entered.hop_id, entered.entered.parent_hop_id) == (b.hop_id, a.hop_id)
    assert (refused.refused.caller_agent, refused.refused.target_agent) == ("B", "A")
    assert refused.refused.refusal.code == "flow_cycle_detected"
    assert (exited.exited.hop_id, exited.exited.tokens, exited.exited.success) == (b.hop_id, 3, True)
    assert {event.flow_id for event in (first, entered, refused, exited)} == {TRACE}
    watch.cancel()


async def test_a_watch_of_all_flows_sees_its_namespace_and_no_other(served: Served) -> None:
    for number in (1, 2):
        await served.grant("", "A", **key(number))
    await served.grant("", "X", metadata=bearer("other"))
    watch: Any = served.flows.WatchFlows(flow_pb2.WatchFlowsRequest())
    snapshots = [await watch.read() for _ in range(2)]
    assert sorted(int(event.flow_id, 16) for event in snapshots) == [1, 2]
    await served.grant("", "X", metadata=bearer("other"), **key(8))
    await served.grant("", "A", **key(9))
    assert int((await watch.read()).flow_id, 16) == 9
    watch.cancel()


async def test_a_slow_watcher_loses_events_is_told_how_many_and_slows_nobody(served: Served) -> None:
    watching = served.watch_flows("", Caller())
    reading = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    a = await served.grant("", "A")
    await reading
    for _ in range(260):
        await served.refusal("A", "A", a)
    events = [await anext(watching) for _ in range(101)]
    lost = events[-1]
    assert isinstance(lost, EventsLost)
    assert (lost.lost, lost.key is not None) == (160, True)
    await served.refusal("A", "A", a)
    assert not isinstance(await anext(watching), EventsLost)
    await watching.aclose()
    assert served.watch_flows.watchers == 0


async def test_watchers_are_bounded(served: Served) -> None:
    await served.grant("", "A")
    watches: list[Any] = [served.flows.WatchFlows(flow_pb2.WatchFlowsRequest()) for _ in range(3)]
    for watch in watches:
        await watch.read()
    one_more: Any = served.flows.WatchFlows(flow_pb2.WatchFlowsRequest())
    error = await rejected(one_more.read())
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WATCHERS")
    watches[0].cancel()
    async with asyncio.timeout(5):
        while served.watch_flows.watchers == 3:
            await asyncio.sleep(0.001)
    again: Any = served.flows.WatchFlows(flow_pb2.WatchFlowsRequest())
    assert (await again.read()).HasField("snapshot")
    for watch in (*watches, again):
        watch.cancel()


async def run(served: Served, *arguments: str) -> int:
    return await asyncio.to_thread(main, [*arguments, "--server", served.address])


async def test_the_commands_list_and_show(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    a = await served.grant("", "planner", reserve_tokens=5)
    b = await served.grant("planner", "coder", a)
    await served.exit(b, 2)
    await served.grant("planner", "tester", a)
    assert await run(served, "flows", "list") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["FLOW", "STARTED", "ROOT", "HOPS", "OPEN", "DEPTH", "TOKENS", "REFUSED", "TIME", "LEFT"]
    assert row.split()[0] == TRACE
    assert await run(served, "flows", "show", TRACE) == 0
    tree = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[0] for line in tree] == ["planner", "coder", "tester"]
    assert [len(line) - len(line.lstrip()) for line in tree] == [0, 2, 2]
    assert "ok after 0.000 s, 2 tokens" in tree[1]
    assert await run(served, "flows", "show", TRACE, "--json") == 0
    assert json.loads(capsys.readouterr().out)["flow_id"] == TRACE
    assert await run(served, "flows", "list", "--json", "--open") == 0
    assert len(json.loads(capsys.readouterr().out)["flows"]) == 1
    assert await run(served, "flows", "show", "1" * 32) == 1
    assert "there is no flow" in capsys.readouterr().out


async def test_the_watch_command_prints_a_line_an_event(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    a = await served.grant("", "A")
    watching = asyncio.ensure_future(run(served, "flows", "watch", TRACE))
    async with asyncio.timeout(5):
        while served.watch_flows.watchers == 0:
            await asyncio.sleep(0.001)
    await served.refusal("A", "A", a)
    await served.exit(a)
    lines: list[str] = []
    async with asyncio.timeout(5):
        while len(lines) < 3:
            await asyncio.sleep(0.01)
            lines += capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1", "refused", "exited"]
    await served.end()
    assert await watching in (0, 1)
