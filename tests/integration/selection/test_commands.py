"""`tidegate agents`, `decisions` and `stats` against a running server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from tidegate import AsyncClient
from tidegate.v1 import selection_pb2, types_pb2
from tidegate_server.cli import main
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.admission_detail import recompute
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import Running, start

from tests.integration.selection.openai_standin import StandIn, choose


class Served(NamedTuple):
    """A running server, the stand-in that it asks, and how to reach it."""

    standin: StandIn
    address: str
    token: Path
    running: Running


Run: TypeAlias = Callable[..., Awaitable[tuple[int, str]]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    """A server with a stand-in's endpoints."""
    async with AsyncExitStack() as stack:
        standin = await stack.enter_async_context(StandIn())
        endpoint = {"baseUrl": standin.base_url, "model": "gpt-4o"}
        candidate = {"qwen3": {"contextWindow": 32768}}
        configuration = {
            "listen": "127.0.0.1:0",
            "stateDirectory": str(tmp_path / "state"),
            "providers": {"qwen": {"kind": "local", "credential": "none", "models": candidate}},
            "managedRouting": {
                "routes": {
                    "managed/routine": {
                        "purpose": "routine",
                        "candidates": ["qwen/qwen3"],
                        "contextWindow": 32768,
                        "maxContextBytes": 1000,
                    }
                }
            },
            "selection": {"chat": endpoint, "embeddings": endpoint},
            "prices": {"gpt-4o": {"currency": "USD", "inputPerMillion": "2.50", "outputPerMillion": "10.00"}},
        }
        path = tmp_path / "tidegate.json"
        path.write_text(json.dumps(configuration))
        running = await start(ConfigurationSource(path, {}), SystemClock(), stack)
        yield Served(standin, str(running.addresses[0]), tmp_path / "state/local.token", running)


@pytest.fixture
def run(server: Served, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command as a person does; its exit code and what it printed."""
    _, address, token, _ = server

    async def command(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*words, "--server", address, "--token-file", str(token)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return command


async def eventually(look: Callable[[], Awaitable[tuple[int, str]]], wanted: Callable[[Any], bool]) -> Any:
    """The JSON that a command prints, as soon as it is what is wanted."""
    async with asyncio.timeout(10):
        while True:
            code, text = await look()
            if code == 0 and wanted(json.loads(text)):
                return json.loads(text)
            await asyncio.sleep(0.05)


async def test_agents_are_added_listed_and_removed(run: Run) -> None:
    code, text = await run("agents", "add", "billing", "--description", "invoices", "--skill", "refunds", "--tag", "t")
    assert (code, text) == (0, "registered billing, owner local\n")
    await run("agents", "add", "secret", "--name", "Secret", "--visible-to", "ann")
    code, text = await run("agents", "list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == ["AGENT", "billing", "secret"]
    code, text = await run("agents", "list", "--caller", "bob", "--json")
    assert json.loads(text) == {
        "agents": [
            {
                "agent_id": "billing",
                "name": "billing",
                "description": "invoices",
                "skills": ["refunds"],
                "tags": ["t"],
                "owner": "local",
            }
        ]
    }
    assert await run("agents", "remove", "billing") == (0, "removed billing\n")
    code, text = await run("agents", "remove", "billing")
    assert code == 1
    assert "billing" in text
    code, text = await run("agents", "add", "orchestrator")
    assert code == 1
    assert "agent_id" in text


async def test_decisions_are_listed_shown_exported_and_summed(run: Run, server: Served) -> None:
    standin, address, token, _ = server
    standin.chat = choose("billing")
    await run("agents", "add", "billing", "--description", "invoices")
    async with AsyncClient(address, token_file=token) as client:
        await client.agents.select(selection_pb2.SelectAgentRequest(query="an invoice", session_id="s1"))
        refused = await client.admit("managed/routine", "worker-1", request_bytes=5000)
        assert refused.refusal is not None

    found = await eventually(lambda: run("decisions", "list", "--json"), lambda data: len(data["decisions"]) == 2)
    kinds = {record["kind"]: record for record in found["decisions"]}
    assert kinds["admission"]["outcome"] == "REFUSED"
    assert kinds["admission"]["reason"] == "CONTEXT_LENGTH_EXCEEDED"
    assert recompute(kinds["admission"]["detail"]).refusal is not None
    assert kinds["selection"]["subject"] == "billing"

    code, text = await run("decisions", "list", "--session", "worker-1")
    assert [line.split()[2] for line in text.splitlines()] == ["KIND", "admission"]
    code, text = await run("decisions", "show", kinds["selection"]["decision_id"])
    assert code == 0
    assert '"cost": "0.0024"' in text
    code, text = await run("decisions", "show", "unknown")
    assert code == 1
    code, text = await run("decisions", "export")
    assert [json.loads(line)["kind"] for line in text.splitlines()] == ["admission", "selection"]
    code, text = await run("decisions", "export", "--limit", "1")
    assert len(text.splitlines()) == 1

    stats = await eventually(
        lambda: run("stats", "--json"), lambda data: any(row["group"] == "admission" for row in data["rows"])
    )
    rows = {(row["group"], row["key"]): row["figures"] for row in stats["rows"]}
    assert rows["admission", "managed/routine"]["context_length_exceeded"] == 1
    assert rows["selection_call", "gpt-4o"]["cost_usd"] == 0.0024
    code, text = await run("stats")
    assert text.startswith("as of 2")
    assert "input_tokens" in text


async def test_an_admission_s_logged_facts_give_its_decision_again(run: Run, server: Served) -> None:
    _, address, token, _ = server
    health = types_pb2.Health(state=types_pb2.HEALTH_STATE_HEALTHY, waiting=1)
    observation = types_pb2.Observation(provider="qwen", model="qwen3", health=health)
    observation.age.FromNanoseconds(0)
    async with AsyncClient(address, token_file=token) as client:
        await client.report_capacity("c1", [observation])
        answer = await client.admit("managed/routine", "worker-1", request_bytes=10)
        again = await client.admit("managed/routine", "worker-1", request_bytes=10)
    assert answer.binding is not None
    assert again.binding is not None
    found = await eventually(
        lambda: run("decisions", "list", "--kind", "admission", "--json"), lambda data: len(data["decisions"]) == 2
    )
    for record in found["decisions"]:
        decision = recompute(record["detail"])
        assert decision.candidate is not None
        assert decision.candidate.name == "qwen/qwen3"
        assert decision.verdict.name == record["outcome"] == "ADMITTED"
        assert decision.pin_state.name == record["detail"]["decision"]["pin_state"]
        assert "worker-1" not in json.dumps(record)


async def test_with_the_log_hung_admissions_and_selections_wait_for_nothing_and_drops_are_counted(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin, address, token, running = server
    standin.chat = choose("billing")
    log = running.application.log
    async with AsyncClient(address, token_file=token) as client:
        agent = selection_pb2.Agent(agent_id="billing", name="Billing")
        await client.agents.register(selection_pb2.RegisterAgentRequest(agent=agent))

        never = asyncio.Event()
        monkeypatch.setattr(log, "_limit", 50)
        monkeypatch.setattr(log._store, "write", lambda _: never.wait())
        for i in range(200):
            await client.admit("managed/routine", f"worker-{i}", request_bytes=5000)
        for _ in range(20):
            answer = await client.agents.select(selection_pb2.SelectAgentRequest(query="an invoice"))
            assert not answer.fallback_used
        assert log.written == 0
        assert log.dropped >= 200 + 20 - 50
    monkeypatch.undo()
