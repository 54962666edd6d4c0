"""The registry over the wire: who registers, who sees, what a name means; steps and dispatch."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tidegate.v1 import selection_pb2 as wire
from tidegate_server.core.model import SECOND
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Deadline

from tests.integration.selection.openai_standin import Reply, StandIn, choose
from tests.integration.selection.serving import TOKEN, fleet, serving

LOCAL = (("authorization", f"Bearer {TOKEN}"),)
Agent = wire.Agent


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    async with StandIn() as standin:
        yield standin


def told(error: grpc.RpcError) -> tuple[str, str]:
    """The status and the reason of a failed call."""
    assert isinstance(error, grpc.aio.AioRpcError)
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # an AioRpcError has all that is read of a call
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return error.code().name, info.reason


async def test_an_agent_comes_back_and_belongs_to_who_registered_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", None) as served:
        agent = Agent(agent_id="a", name="A", description="d", skills=["s"], tags=["t"], url="u", visible_to=["bob"])
        stored = (await served.stub.RegisterAgent(wire.RegisterAgentRequest(agent=agent), metadata=LOCAL)).agent
        agent.owner = "local"
        assert stored == agent
        mine = wire.ListAgentsRequest(caller="bob")
        assert list((await served.stub.ListAgents(mine)).agents) == [agent]
        assert not (await served.stub.ListAgents(wire.ListAgentsRequest(caller="eve"))).agents
        assert not (await served.stub.ListAgents(wire.ListAgentsRequest())).agents
        assert list((await served.stub.ListAgents(wire.ListAgentsRequest(), metadata=LOCAL)).agents) == [agent]


async def test_an_agent_without_an_id_is_given_one(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", None) as served:
        request = wire.RegisterAgentRequest(agent=Agent(name="A"))
        assert (await served.stub.RegisterAgent(request, metadata=LOCAL)).agent.agent_id == "made-by-the-server"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.RegisterAgent(wire.RegisterAgentRequest(), metadata=LOCAL)
        assert told(refused.value) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_registering_needs_an_identity_and_a_replacement_its_owner(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", None) as served:
        request = wire.RegisterAgentRequest(agent=Agent(agent_id="a", name="A", owner="ann"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.RegisterAgent(request)
        assert told(refused.value) == ("UNAUTHENTICATED", "IDENTITY_REQUIRED")
        await served.stub.RegisterAgent(request, metadata=LOCAL)
        request.agent.description = "better"
        assert (await served.stub.RegisterAgent(request, metadata=LOCAL)).agent.description == "better"
        request.agent.owner = "eve"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.RegisterAgent(request, metadata=LOCAL)
        assert told(refused.value) == ("PERMISSION_DENIED", "AGENT_NOT_OWNED")
        await served.stub.DeregisterAgent(wire.DeregisterAgentRequest(agent_id="a"), metadata=LOCAL)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.DeregisterAgent(wire.DeregisterAgentRequest(agent_id="a"), metadata=LOCAL)
        assert told(refused.value) == ("NOT_FOUND", "AGENT_NOT_FOUND")


async def test_a_listing_is_paged_over_what_the_caller_sees(tmp_path: Path) -> None:
    agents = fleet(25)
    for agent in agents[::2]:
        agent.visible_to.append("ann")
    async with serving(tmp_path / "s", None) as served:
        await served.register(*agents)
        found, token = [], ""
        while True:
            request = wire.ListAgentsRequest(caller="bob", page_size=5, page_token=token)
            page = await served.stub.ListAgents(request)
            found += [agent.agent_id for agent in page.agents]
            token = page.next_page_token
            if not token:
                break
        assert found == [agent.agent_id for agent in agents[1::2]]
        for bad in ({"page_token": "zz"}, {"page_token": "ff"}, {"page_size": -1}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await served.stub.ListAgents(wire.ListAgentsRequest(**bad))
            assert told(refused.value) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_an_empty_fleet_is_the_only_not_found_of_a_selection(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(Agent(agent_id="hidden", name="Hidden", visible_to=["ann"]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.SelectAgent(wire.SelectAgentRequest(caller="bob", query="x"))
        assert told(refused.value) == ("NOT_FOUND", "AGENT_NOT_FOUND")
        assert refused.value.details() == "there is no agent that the caller may see"
        answer = await served.stub.SelectAgent(wire.SelectAgentRequest(caller="ann", query="x"))
        assert answer.agent.agent_id == "hidden"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.SelectAgent(wire.SelectAgentRequest(caller="ann", query="  "))
        assert told(refused.value) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_a_hidden_agent_is_never_offered(tmp_path: Path, standin: StandIn) -> None:
    standin.chat = choose("hidden")
    async with serving(tmp_path / "s", standin) as served:
        await served.register(Agent(agent_id="hidden", name="H", description="taxes", visible_to=["ann"]), *fleet(2))
        answer = await served.stub.SelectAgent(wire.SelectAgentRequest(caller="bob", query="taxes"))
    assert answer.agent.agent_id != "hidden"
    assert answer.agents_considered == 2
    assert answer.fallback_used


async def test_dispatch_looks_up_and_never_runs_the_pipeline(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(
            Agent(agent_id="a", name="Twin"),
            Agent(agent_id="b", name="Twin", visible_to=["ann"]),
            Agent(agent_id="c", name="Single"),
            Agent(agent_id="d", name="c"),
            *fleet(20),
        )

        async def dispatch(agent_id: str, caller: str = "") -> tuple[int, str]:
            answer = await served.stub.Dispatch(wire.DispatchRequest(agent_id=agent_id, caller=caller))
            return answer.target, answer.agent.agent_id

        assert await dispatch("") == (wire.DISPATCH_TARGET_ORCHESTRATOR, "")
        assert await dispatch("orchestrator") == (wire.DISPATCH_TARGET_ORCHESTRATOR, "")
        assert await dispatch("a") == (wire.DISPATCH_TARGET_AGENT, "a")
        assert await dispatch("c") == (wire.DISPATCH_TARGET_AGENT, "c")
        assert await dispatch("Single") == (wire.DISPATCH_TARGET_AGENT, "c")
        assert await dispatch("Twin", "bob") == (wire.DISPATCH_TARGET_AGENT, "a")
        for agent_id, caller, outcome in [
            ("Twin", "ann", ("INVALID_ARGUMENT", "INVALID_REQUEST")),
            ("b", "bob", ("NOT_FOUND", "AGENT_NOT_FOUND")),
            ("A", "", ("NOT_FOUND", "AGENT_NOT_FOUND")),
            ("Orchestrator", "", ("NOT_FOUND", "AGENT_NOT_FOUND")),
        ]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await dispatch(agent_id, caller)
            assert told(refused.value) == outcome
    assert standin.chat_calls == []
    assert standin.embedding_calls == []


async def test_a_step_keeps_its_agent_and_else_the_pipeline_fills_it_in(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(3))
        given = await served.stub.AssignStep(wire.AssignStepRequest(task_description="x", agent="Helper 001"))
        assert (given.agent.agent_id, given.source) == ("agent-001", wire.ASSIGNMENT_SOURCE_GIVEN)
        assert standin.chat_calls == []
        standin.chat = choose("agent-002")
        picked = await served.stub.AssignStep(wire.AssignStepRequest(task_description="subject0"))
        assert (picked.agent.agent_id, picked.source) == ("agent-002", wire.ASSIGNMENT_SOURCE_PIPELINE)
        assert picked.decision_id
        standin.chat = lambda _: Reply(status=500)
        fallen = await served.stub.AssignStep(wire.AssignStepRequest(task_description="subject0"))
        assert (fallen.agent.agent_id, fallen.source) == ("agent-000", wire.ASSIGNMENT_SOURCE_PIPELINE_FALLBACK)
        assert fallen.cause == "the endpoint answered with status 500"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.AssignStep(wire.AssignStepRequest(task_description="x", agent="nobody"))
        assert told(refused.value) == ("NOT_FOUND", "AGENT_NOT_FOUND")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.AssignStep(wire.AssignStepRequest())
        assert told(refused.value) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_a_step_is_matched_by_name_when_the_pipeline_errors_and_says_so(
    tmp_path: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise StoreUnavailable("agents")

    async with serving(tmp_path / "s", standin) as served:
        await served.register(*fleet(30))
        monkeypatch.setattr(served.assign, "_select", broken)
        request = wire.AssignStepRequest(task_description="subject17, please", session_id="s")
        matched = await served.stub.AssignStep(request)
        assert (matched.agent.agent_id, matched.source) == ("agent-017", wire.ASSIGNMENT_SOURCE_NAME_MATCH)
        assert "matched to name and description" in matched.cause
        (record,) = await served.logged(session_id="s")
        assert record.decision_id == matched.decision_id
        assert record.outcome == "FALLBACK"


async def test_the_registry_s_store_down_is_unavailable(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin) as served:
        await served.agents._database.do(lambda connection: connection.execute("DROP TABLE agents"))
        for call in (
            served.stub.SelectAgent(wire.SelectAgentRequest(query="x")),
            served.stub.AssignStep(wire.AssignStepRequest(task_description="x")),
            served.stub.Dispatch(wire.DispatchRequest(agent_id="x")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert told(refused.value) == ("UNAVAILABLE", "AGENT_STORE_UNAVAILABLE")


async def test_a_session_is_kept_as_a_hash_and_capped(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", None) as served:
        for i in range(25):
            turn = wire.Turn(role="user", content=f"turn {i}")
            await served.stub.AppendTurn(wire.AppendTurnRequest(session_id="thread-of-ann", turn=turn))
        for bad in (
            wire.AppendTurnRequest(turn=wire.Turn(role="user", content="x")),
            wire.AppendTurnRequest(session_id="s", turn=wire.Turn(content="x")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await served.stub.AppendTurn(bad)
            assert told(refused.value) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        rows = await served.agents._database.do(
            lambda connection: connection.execute("SELECT session, content FROM turns ORDER BY position").fetchall()
        )
    assert [content for _, content in rows] == [f"turn {i}" for i in range(5, 25)]
    files = b"".join(file.read_bytes() for file in (tmp_path / "s").rglob("*") if file.is_file())
    assert b"thread-of-ann" not in files


def test_a_deadline_that_has_passed_leaves_nothing() -> None:
    assert Deadline(5).left(9 * SECOND) == 0
