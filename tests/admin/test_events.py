"""Server-sent events of a real server: decisions and flows while they happen."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tidegate.v1 import flow_pb2, flow_pb2_grpc
from tidegate_server.core.decision_record import DecisionRecord
from tidegate_server.core.model import Caller
from tidegate_server.stores.memory_decisions import MemoryDecisionStore
from tidegate_server.usecases.watch_decisions import WATCH_QUEUE, WatchedDecisions

from tests.admin.scene import SCENE, TRACES, Http, admin, play
from tests.integration.server.harness import health, identity, until


class Events:
    """An open stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        """The next event, within 10 s; comments are passed over."""
        kind = ""
        while True:
            line = await asyncio.wait_for(anext(self._lines), 10)
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return kind, json.loads(line.removeprefix("data: "))

    async def connected(self) -> None:
        """The first line."""
        assert await asyncio.wait_for(anext(self._lines), 10) == ": connected"

    async def is_over(self) -> bool:
        """Whether the server ends it."""
        return [line async for line in self._lines if line] == []


@asynccontextmanager
async def events(http: Http, path: str, token: str = "") -> AsyncIterator[Events]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx.AsyncClient(base_url=http.base, timeout=20, headers=headers) as client,
        client.stream("GET", path) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response)


async def test_a_decision_is_told_within_a_second_of_being_made(tmp_path: Path) -> None:
    async with admin(tmp_path) as http, events(http, "/api/decisions/events") as stream:
        await stream.connected()
        await http.served.report(health())
        answer = await http.served.admit()
        async with asyncio.timeout(1):
            kind, told = await stream.next()
    assert kind == "decision"
    assert told["decision_id"] == answer.decision_id
    assert (told["outcome"], told["candidate"], told["pin_state"]) == ("ADMITTED", "qwen/qwen-next", "NEW")


async def test_a_flow_is_told_as_it_stands_and_then_as_it_goes(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        async with events(http, f"/api/flows/{TRACES[1]}/events") as stream:
            kind, told = await stream.next()
            assert (kind, told["snapshot"]["root_agent"]) == ("snapshot", "summarizer")
            assert told["snapshot"]["limits"]["fan_out"] == 8
            flows = flow_pb2_grpc.FlowServiceStub(http.served.channel)
            for trace in TRACES[:2]:
                context = f"00-{trace}-00f067aa0ba902b7-01"
                await flows.EnterHop(flow_pb2.EnterHopRequest(traceparent=context, target_agent="again"))
            kind, told = await stream.next()
            assert (kind, told["flow_id"], told["entered"]["target_agent"]) == ("entered", TRACES[1], "again")


async def test_a_reader_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        watch = http.served.application.flow_verbs.watch_flows
        decisions = http.served.application.decisions
        async with events(http, "/api/flows/events") as stream, events(http, "/api/decisions/events") as other:
            await stream.connected()
            await other.connected()
            await until(lambda: (watch.watchers, len(decisions._watchers)) == (1, 1))
        await until(lambda: (watch.watchers, len(decisions._watchers)) == (0, 0))


async def test_a_stream_ends_with_its_credential(tmp_path: Path) -> None:
    people = [identity("old", "viewer"), identity("g", "gateway")]
    async with admin(tmp_path, identities=people) as http, events(http, "/api/flows/events", "old-token") as stream:
        await stream.connected()
        http.served.write(SCENE, identities=[identity("g", "gateway", startFlows=True)])
        await http.served.running.reload()
        flows = flow_pb2_grpc.FlowServiceStub(http.served.channel)
        request = flow_pb2.EnterHopRequest(traceparent=f"00-{TRACES[0]}-00f067aa0ba902b7-01", target_agent="secret")
        await flows.EnterHop(request, metadata=(("authorization", "Bearer g-token"),))
        assert await stream.is_over(), "what happens after it is nobody's who was let go"


async def test_what_cannot_be_watched_is_an_event(tmp_path: Path) -> None:
    async with admin(tmp_path) as http, events(http, f"/api/flows/{'x' * 300}/events") as stream:
        kind, told = await stream.next()
    assert (kind, told["status"], told["violations"][0]["field"]) == ("error", 400, "flow_id")


async def test_a_slow_reader_loses_the_oldest_decisions_and_slows_nobody() -> None:
    store = WatchedDecisions(MemoryDecisionStore())
    watching = store.watch(Caller("v"))
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    records = [DecisionRecord(f"d{n}", n, "admission", "m", "ADMITTED") for n in range(WATCH_QUEUE + 11)]
    elsewhere = DecisionRecord("other", 0, "admission", "m", "ADMITTED", namespace="other")
    await store.write([elsewhere, *records])
    assert (await first).decision_id == "d11"
    await watching.aclose()
