"""A server in the middle of a day: engines, accounts, decisions of many kinds, flows, and a name to distrust."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from google.protobuf.timestamp_pb2 import Timestamp
from tidegate.v1 import flow_pb2, flow_pb2_grpc, types_pb2
from tidegate_server.core.model import SECOND
from tidegate_server.stores import guarded_flows
from tidegate_server.wiring.clock import SystemClock

from tests.integration.server.harness import (
    CLAUDE,
    CODEX,
    CONFIG,
    PAID,
    QWEN,
    Json,
    Served,
    balance,
    blocked,
    quota,
    route,
    serving,
    until,
)

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
TRACES = ("4bf92f3577b34da6a3ce929d0e0e4736", "a3ce929d0e0e47364bf92f3577b34da6", "0af7651916cd43dd8448eb211c80319c")

SCENE: Json = {
    **CONFIG,
    "managedRouting": {
        "routes": {
            "managed/routine": route(QWEN, CLAUDE, CODEX, PAID, allowPaid=True),
            "managed/strong": {**route(CLAUDE, CODEX, minRemainingPercent=15), "purpose": "strong"},
            "managed/local": route(QWEN),
            "managed/accounts": route(CODEX, PAID, allowPaid=True),
        }
    },
    "flow": {"maxDepth": 4, "maxFanOut": 8, "maxTokens": 60000, "timeout": "10m"},
}


class Http:
    """The HTTP side of a running server."""

    def __init__(self, served: Served) -> None:
        self.served = served
        assert served.running.admin is not None
        self.base = f"http://{served.running.admin}"

    async def get(self, path: str, token: str = "", **headers: str) -> httpx.Response:
        """One GET."""
        given = {**headers, **({"authorization": f"Bearer {token}"} if token else {})}
        async with httpx.AsyncClient(base_url=self.base, timeout=10) as client:
            return await client.get(path, headers=given)

    async def data(self, path: str, token: str = "") -> Any:
        """The JSON of an answer that must be 200."""
        response = await self.get(path, token)
        assert response.status_code == 200, response.text
        return response.json()

    async def metrics(self) -> dict[str, float]:
        """Each sample by its name and labels, as written."""
        lines = (await self.get("/metrics")).text.splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}

    async def written(self, decisions: int) -> None:
        """Return when so many decisions stand in the log."""
        async with asyncio.timeout(10):
            while self.served.application.log.written < decisions:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def admin(directory: Path, config: Json = CONFIG, **settings: Any) -> AsyncIterator[Http]:
    """A server on the machine's clock, seen from its HTTP side."""
    busy = patch.object(guarded_flows, "ANSWER_WITHIN", 10 * SECOND)  # with a browser beside it: that is no outage
    with busy:
        async with serving(directory, config, clock=SystemClock(), **settings) as served:
            await until(served.application.health.is_ready)
            yield Http(served)


def engine(*, running: int = 3, waiting: int = 0, kv_usage: float = 0.42, age: float = 0.0) -> types_pb2.Observation:
    """A healthy local engine with its load."""
    health = types_pb2.Health(state=types_pb2.HEALTH_STATE_HEALTHY, running=running, waiting=waiting, kv_usage=kv_usage)
    observation = types_pb2.Observation(provider="qwen", model="qwen-next", health=health)
    observation.age.FromMilliseconds(int(age * 1000))
    return observation


def resetting(observation: types_pb2.Observation, seconds: int) -> types_pb2.Observation:
    """A quota that resets in so many seconds."""
    now = Timestamp()
    now.GetCurrentTime()
    observation.quota.reset_time.FromSeconds(now.seconds + seconds)
    return observation


async def play(served: Served) -> int:
    """Facts, decisions and flows; how many decisions are logged by it."""
    await served.report(
        engine(age=2.0),
        resetting(quota("claude", 72.0, "5h", age=240), 7300),
        resetting(quota("claude", 9.5, "7d", age=600), 250_000),
        resetting(quota("codex", 1.2, "5h", age=30), 4100),
        balance(age=40),
        collector="day",
    )
    for number in range(4):
        await served.admit("managed/routine", f"worker-{number}")
    await served.admit("managed/routine", "worker-1")
    await served.admit("managed/routine", "big", 9_000_000)
    await served.admit("managed/strong", "deep")
    await served.admit("managed/accounts", "payer")
    await served.admit("qwen/qwen-next", "explicit")
    await served.admit("managed/local", "picture", input_modalities=["text", HOSTILE])
    await served.report(blocked("claude", types_pb2.BLOCKER_RATE_LIMITED, age=10), collector="day")
    refused = await _flows(served)
    return 10 + refused


async def _flows(served: Served) -> int:
    flows = flow_pb2_grpc.FlowServiceStub(served.channel)
    lead = await _enter(flows, TRACES[0], "", "planner")
    coder = await _enter(flows, TRACES[0], "planner", "coder", lead, reserve_tokens=20_000)
    await _enter(flows, TRACES[0], "coder", "reviewer", coder, reserve_tokens=9_000)
    tester = await _enter(flows, TRACES[0], "coder", "tester", coder)
    await flows.ExitHop(_exit(tester, 4_200, success=False))
    docs = await _enter(flows, TRACES[0], "planner", "docs-writer", lead)
    await flows.ExitHop(_exit(docs, 12_345, success=True))
    again = flow_pb2.EnterHopRequest(
        traceparent=coder.traceparent, tracestate=coder.tracestate, caller_agent="coder", target_agent="planner"
    )
    assert (await flows.EnterHop(again)).refusal.code == "flow_cycle_detected"
    over = await _enter(flows, TRACES[1], "", "summarizer")
    await flows.ExitHop(_exit(over, 1_900, success=True))
    await _enter(flows, TRACES[2], "", HOSTILE)
    return 1


async def _enter(
    flows: Any, trace: str, caller: str, target: str, within: flow_pb2.HopGrant | None = None, **fields: Any
) -> flow_pb2.HopGrant:
    request = flow_pb2.EnterHopRequest(
        traceparent=f"00-{trace}-00f067aa0ba902b7-01" if within is None else within.traceparent,
        tracestate="" if within is None else within.tracestate,
        caller_agent=caller,
        target_agent=target,
        **fields,
    )
    answer = await flows.EnterHop(request)
    assert answer.verdict == types_pb2.VERDICT_ADMITTED, answer
    grant: flow_pb2.HopGrant = answer.grant
    return grant


def _exit(grant: flow_pb2.HopGrant, tokens: int, *, success: bool) -> flow_pb2.ExitHopRequest:
    return flow_pb2.ExitHopRequest(traceparent=grant.traceparent, hop_id=grant.hop_id, tokens=tokens, success=success)
