"""The selection service on a loopback port, composed as a server composes it, with a store that can be made to hang."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from tidegate.v1 import selection_pb2 as wire
from tidegate.v1 import selection_pb2_grpc as rpc
from tidegate_server.core.decision_record import session_hash
from tidegate_server.core.model import SECOND
from tidegate_server.core.selection.model import Price, SelectionSettings, StageDeadlines
from tidegate_server.ports import Clock, DecisionStore, Embedder, Selector
from tidegate_server.providers.endpoint import Endpoint
from tidegate_server.providers.openai_embedder import OpenAiEmbedder
from tidegate_server.providers.openai_selector import OpenAiSelector
from tidegate_server.rpc import selection
from tidegate_server.rpc.guard import Guard
from tidegate_server.stores.sqlite_agents import SqliteAgentStore
from tidegate_server.stores.sqlite_decisions import SqliteDecisionStore
from tidegate_server.usecases.agent_embeddings import AgentEmbeddings
from tidegate_server.usecases.append_turn import AppendTurn
from tidegate_server.usecases.assign_step import AssignStep
from tidegate_server.usecases.decision_log import QueuedDecisionLog
from tidegate_server.usecases.deregister_agent import DeregisterAgent
from tidegate_server.usecases.dispatch import Dispatch
from tidegate_server.usecases.identify import Identify, local_identity
from tidegate_server.usecases.list_agents import ListAgents
from tidegate_server.usecases.list_decisions import ListDecisions
from tidegate_server.usecases.register_agent import RegisterAgent
from tidegate_server.usecases.select_agent import SelectAgent, SelectionLog
from tidegate_server.usecases.selection_stages import Stages
from tidegate_server.usecases.stats import GetStats
from tidegate_server.wiring.clock import SystemClock

from tests.integration.selection.openai_standin import StandIn

TOKEN = "token-of-the-tests"
PRICES = {"gpt-4o": Price("USD", Decimal("2.50"), Decimal("10.00"))}
SHORT = SelectionSettings(
    deadlines=StageDeadlines(shortlist=SECOND // 5, rerank=SECOND // 5, select=SECOND // 5),
)
"""Deadlines that a test can wait for; a stage that a provider holds up ends after 200 ms."""


class Served(NamedTuple):
    """What a test may touch of a running service."""

    stub: "rpc.SelectionServiceAsyncStub"
    agents: SqliteAgentStore
    log: QueuedDecisionLog
    select: SelectAgent
    assign: AssignStep

    async def register(self, *agents: wire.Agent, token: str = TOKEN) -> None:
        """Register agents with the local token."""
        for agent in agents:
            request = wire.RegisterAgentRequest(agent=agent)
            await self.stub.RegisterAgent(request, metadata=(("authorization", f"Bearer {token}"),))

    async def logged(self, **which: Any) -> Sequence[wire.DecisionRecord]:
        """The decisions in the log, once all that was decided is written."""
        async with asyncio.timeout(5):
            while self.log.waiting:
                await asyncio.sleep(0.01)
        return (await self.stub.ListDecisions(wire.ListDecisionsRequest(**which))).decisions


@asynccontextmanager
async def serving(
    state: Path,
    standin: StandIn | None,
    settings: SelectionSettings = SHORT,
    *,
    embedder: Embedder | None = None,
    selector: Selector | None = None,
    decisions: DecisionStore | None = None,
    queue: int = 10_000,
    prices: Mapping[str, Price] = PRICES,
    clock: Clock | None = None,
) -> AsyncIterator[Served]:
    """Serve on `state`; with a stand-in, its endpoint embeds and picks unless others are given."""
    clock = clock or SystemClock()
    agents = SqliteAgentStore.open(state)
    store = decisions or SqliteDecisionStore.open(state)
    if standin is not None:
        embedder = embedder or OpenAiEmbedder(Endpoint(standin.base_url), standin.base_url, "small")
        selector = selector or OpenAiSelector(Endpoint(standin.base_url), "gpt-4o")
    embeddings = None if embedder is None else AgentEmbeddings(embedder, agents, clock)
    log = QueuedDecisionLog(store, clock, queue=queue)
    log.start()
    session_ids = partial(session_hash, b"k" * 32)
    numbers = itertools.count(1)
    selection_log = SelectionLog(log, clock, session_ids, lambda: f"decision-{next(numbers)}")
    select = SelectAgent(agents, Stages(clock, settings, embeddings, selector), selection_log, prices)
    assign = AssignStep(agents, select, selection_log)
    verbs = selection.SelectionVerbs(
        RegisterAgent(agents, lambda: "made-by-the-server"),
        DeregisterAgent(agents),
        ListAgents(agents),
        AppendTurn(agents, clock, session_ids, settings),
        select,
        assign,
        Dispatch(agents),
        GetStats(store, clock),
        ListDecisions(store, session_ids),
    )
    identify = Identify([local_identity(TOKEN), local_identity("other")], open_to_local=True)
    server = grpc.aio.server(interceptors=[Guard(identify, max_calls=100)])
    selection.add_to(server, selection.SelectionServicer(verbs, clock, 30 * SECOND))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Served(rpc.SelectionServiceStub(channel), agents, log, select, assign)
    finally:
        await server.stop(None)
        await log.close(SECOND // 4)
        for part in (embeddings, embedder, selector, agents, store):
            if part is not None:
                await part.close()


def fleet(size: int) -> list[wire.Agent]:
    """Agents that differ by one word each."""
    return [
        wire.Agent(agent_id=f"agent-{i:03}", name=f"Helper {i:03}", description=f"handles subject{i} for people")
        for i in range(size)
    ]
