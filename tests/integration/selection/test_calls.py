"""How often a provider is called: never where the contract says so, and once where once is enough (§9)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.v1 import selection_pb2 as wire
from tidegate_server.core.model import SECOND
from tidegate_server.core.selection.model import SelectionSettings
from tidegate_server.providers.endpoint import Endpoint
from tidegate_server.providers.openai_embedder import OpenAiEmbedder

from tests.integration.selection.openai_standin import Reply, StandIn, choose_last, embeddings, offered, reply
from tests.integration.selection.serving import fleet, serving

Ask = wire.SelectAgentRequest
SETTINGS = SelectionSettings()


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    async with StandIn() as standin:
        yield standin


async def test_fourteen_agents_and_no_history_need_no_embedding(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(14))
        answer = await served.stub.SelectAgent(Ask(query="subject7"))
    assert standin.embedding_calls == []
    assert len(standin.chat_calls) == 1
    assert len(offered(standin.chat_calls[0])) == 14
    assert offered(standin.chat_calls[0])[0] == "agent-007"
    assert [(s.stage, s.candidates, s.skipped, s.degraded) for s in answer.stages] == [
        (wire.SELECTION_STAGE_SHORTLIST, 14, True, False),
        (wire.SELECTION_STAGE_RERANK, 14, True, False),
        (wire.SELECTION_STAGE_SELECT, 1, False, False),
    ]
    assert answer.agents_considered == 14


async def test_fifteen_agents_are_narrowed_to_ten(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(15))
        answer = await served.stub.SelectAgent(Ask(query="who handles subject12 for people"))
    assert standin.batches == [1, 15]
    assert len(standin.chat_calls) == 1
    assert len(offered(standin.chat_calls[0])) == 10
    assert offered(standin.chat_calls[0])[0] == "agent-012"
    assert [s.candidates for s in answer.stages] == [10, 10, 1]
    assert not any(s.degraded for s in answer.stages)
    assert [s.skipped for s in answer.stages] == [False, True, False]


async def test_a_fleet_is_embedded_once_and_not_again_after_a_restart(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(20))
        for _ in range(3):
            await served.stub.SelectAgent(Ask(query="subject3"))
        assert standin.batches == [1, 20, 1, 1]
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        answer = await served.stub.SelectAgent(Ask(query="subject3"))
        assert standin.batches[4:] == [1]
        assert not answer.stages[0].degraded
        changed = fleet(20)[3]
        changed.description = "handles subject333 for people"
        await served.register(changed)
        await served.stub.SelectAgent(Ask(query="subject333"))
        assert standin.batches[5:] == [1, 1]
        assert standin.embedding_calls[-1]["input"] == ["Helper 003\nhandles subject333 for people"]


async def test_selections_at_once_share_the_embedding_of_a_fleet(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(40))
        calls = [served.stub.SelectAgent(Ask(query=f"subject{i}")) for i in range(8)]
        for call in calls:
            assert not (await call).stages[0].degraded
    assert standin.embedded == 8 + 40


async def test_without_history_there_is_no_rerank_call_and_with_it_there_is_one(
    tmp_path: Path, standin: StandIn
) -> None:
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(5))
        await served.stub.SelectAgent(Ask(query="and the other one?", session_id="unknown"))
        assert standin.embedding_calls == []
        turn = wire.Turn(role="user", content="please handle subject4 for people", agent_id="agent-004")
        await served.stub.AppendTurn(wire.AppendTurnRequest(session_id="s1", turn=turn))
        answer = await served.stub.SelectAgent(Ask(query="and the other one?", session_id="s1"))
    assert standin.batches == [1, 5]
    assert standin.embedding_calls[0]["input"] == ["user: please handle subject4 for people\nand the other one?"]
    assert offered(standin.chat_calls[-1])[0] == "agent-004"
    assert not answer.stages[1].skipped


async def test_history_in_the_request_stands_in_the_session_s_place_and_is_capped(
    tmp_path: Path, standin: StandIn
) -> None:
    async with serving(tmp_path / "s", standin, SelectionSettings(max_history_messages=2)) as served:
        await served.register(*fleet(3))
        for i in range(4):
            turn = wire.Turn(role="user", content=f"stored {i}")
            await served.stub.AppendTurn(wire.AppendTurnRequest(session_id="s1", turn=turn))
        await served.stub.SelectAgent(Ask(query="q", session_id="s1"))
        history = [wire.Turn(role="user", content=f"given {i}") for i in range(3)]
        await served.stub.SelectAgent(Ask(query="q", session_id="s1", history=history))
    texts = [call["input"][0] for call in standin.embedding_calls if len(call["input"]) == 1]
    assert texts == ["user: stored 2\nuser: stored 3\nq", "user: given 1\nuser: given 2\nq"]


async def test_with_embeddings_down_word_overlap_picks_the_ten_of_two_hundred(tmp_path: Path, standin: StandIn) -> None:
    standin.embedding = lambda _: Reply(status=503)
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(200))
        answer = await served.stub.SelectAgent(Ask(query="I need somebody for subject187"))
    assert len(standin.embedding_calls) == 1
    assert len(offered(standin.chat_calls[0])) == 10
    assert offered(standin.chat_calls[0])[0] == "agent-187"
    assert answer.stages[0].degraded
    assert answer.stages[0].cause == "the endpoint answered with status 503"
    assert answer.stages[0].candidates == 10


async def test_of_forty_the_thirty_seventh_is_reached_with_everything_down(tmp_path: Path, standin: StandIn) -> None:
    standin.embedding = lambda _: Reply(status=500)
    standin.chat = lambda _: Reply(status=500)
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(40))
        answer = await served.stub.SelectAgent(Ask(query="help me with subject37"))
    assert answer.agent.agent_id == "agent-037"
    assert answer.fallback_used


async def test_a_rerank_that_fails_leaves_the_order(tmp_path: Path, standin: StandIn) -> None:
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(20))
        await served.stub.SelectAgent(Ask(query="subject3 for people"))
        before = offered(standin.chat_calls[-1])
        calls = iter([True, False])
        standin.embedding = lambda p: reply(embeddings(p)) if next(calls) else Reply(status=500)
        history = [wire.Turn(role="user", content="subject9 subject9 subject9")]
        answer = await served.stub.SelectAgent(Ask(query="subject3 for people", history=history))
    assert offered(standin.chat_calls[-1]) == before
    assert [stage.degraded for stage in answer.stages] == [False, True, False]
    assert not answer.fallback_used


async def test_vectors_of_another_model_or_length_are_never_compared(tmp_path: Path, standin: StandIn) -> None:
    state = tmp_path / "s"
    async with serving(state, standin, SETTINGS) as served:
        await served.register(*fleet(20))
        await served.stub.SelectAgent(Ask(query="subject3"))
    # The same length, another model by name; then the same name, and the endpoint reports another model.
    other = OpenAiEmbedder(Endpoint(standin.base_url), standin.base_url, "large")
    async with serving(state, standin, SETTINGS, embedder=other) as served:
        await served.stub.SelectAgent(Ask(query="subject3"))
        assert standin.batches[2:] == [1, 20]
        standin.embedding = lambda p: reply(embeddings(p, model="standin-2"))
        await served.stub.SelectAgent(Ask(query="subject3"))
        assert standin.batches[4:] == [1, 20]
        # The same model by name and report, and another length.
        standin.embedding = lambda p: reply(embeddings(p, dimensions=32, model="standin-2"))
        answer = await served.stub.SelectAgent(Ask(query="subject3"))
        assert standin.batches[6:] == [1, 20]
        assert not answer.stages[0].degraded
        assert offered(standin.chat_calls[-1])[0] == "agent-003"


async def test_cards_of_another_length_than_the_query_s_are_no_ranking(tmp_path: Path, standin: StandIn) -> None:
    standin.embedding = lambda p: reply(embeddings(p, dimensions=64 if len(p["input"]) == 1 else 32))
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(20))
        answers = [await served.stub.SelectAgent(Ask(query="subject3 please")) for _ in range(2)]
    assert [answer.stages[0].degraded for answer in answers] == [True, True]
    assert offered(standin.chat_calls[0])[0] == "agent-003"
    assert standin.batches == [1, 20, 1]  # what is of no use is not asked for at every query


async def test_a_slow_fleet_is_embedded_on_while_the_caller_has_its_answer(tmp_path: Path, standin: StandIn) -> None:
    settings = SelectionSettings(deadlines=SETTINGS.deadlines.__class__(shortlist=SECOND // 5))
    async with serving(tmp_path / "s", standin, settings) as served:
        await served.register(*fleet(20))
        standin.embedding = lambda p: reply(embeddings(p)) if len(p["input"]) == 1 else Reply(hang=True)
        answer = await served.stub.SelectAgent(Ask(query="subject3 please"))
        assert answer.stages[0].cause == "it took longer than the stage's deadline"
        assert standin.batches == [1, 20]
        again = await served.stub.SelectAgent(Ask(query="subject3 please"))
        assert again.stages[0].degraded
        assert standin.batches == [1, 20, 1]  # the fleet's one call is joined, not repeated


async def test_no_endpoint_at_all_still_picks_and_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", None, SETTINGS) as served:
        await served.register(*fleet(200))
        answer = await served.stub.SelectAgent(Ask(query="subject150 for me"))
    assert answer.agent.agent_id == "agent-150"
    assert answer.fallback_used
    assert answer.stages[2].cause == "no chat endpoint is configured"
    assert answer.stages[2].degraded
    assert answer.stages[2].skipped
    assert (answer.selection_tokens, answer.selection_cost) == (0, "")


async def test_the_choice_is_the_model_s_and_it_is_metered(tmp_path: Path, standin: StandIn) -> None:
    standin.chat = choose_last
    async with serving(tmp_path / "s", standin, SETTINGS) as served:
        await served.register(*fleet(3))
        answer = await served.stub.SelectAgent(Ask(query="subject0", session_id="thread-7"))
        (record,) = await served.logged(session_id="thread-7")
        stats = {(row.group, row.key): row.figures for row in (await served.stub.GetStats(wire.GetStatsRequest())).rows}
    assert answer.agent.agent_id == offered(standin.chat_calls[0])[-1]
    assert not answer.fallback_used
    assert answer.reasoning == "it knows best"
    assert (answer.selection_tokens, answer.selection_cost) == (840, "0.0024")
    assert record.decision_id == answer.decision_id
    assert stats["selection_call", "gpt-4o"]["input_tokens"] == 800
    assert stats["selection_call", "gpt-4o"]["cost_usd"] == 0.0024
    assert stats["selection", answer.agent.agent_id]["selected"] == 1
