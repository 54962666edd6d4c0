"""Metrics of a real server, after decisions whose number is known."""

import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tidegate.v1 import flow_pb2, selection_pb2, selection_pb2_grpc, types_pb2
from tidegate_server.errors import StoreUnavailable
from tidegate_server.metrics.measures import BOUNDS, Latency
from tidegate_server.stores.sqlite_pins import SqlitePinStore

from tests.admin.scene import HOSTILE, SCENE, TRACES, admin, engine, play
from tests.integration.server.harness import CLAUDE, CODEX, CONFIG, Json, balance, failure, health, quota, route

REFUSED_BYTES = 'tidegate_decisions_total{reason="context_length_exceeded",route="managed/routine",verdict="refused"}'


async def test_decisions_are_counted_by_route_verdict_and_reason(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        seen = await http.metrics()
    assert seen['tidegate_decisions_total{reason="none",route="managed/routine",verdict="admitted"}'] == 5
    assert seen[REFUSED_BYTES] == 1
    assert seen['tidegate_decisions_total{reason="none",route="qwen/qwen-next",verdict="bypassed"}'] == 1
    assert sum(v for name, v in seen.items() if name.startswith("tidegate_decisions_total")) == 10
    new = 'tidegate_bindings_total{fallback="false",pin="new",provider="qwen",route="managed/routine",tier="local"}'
    assert seen[new] == 4
    assert seen[new.replace("new", "existing")] == 1
    paid = 'fallback="true",pin="new",provider="openrouter",route="managed/accounts",tier="paid"'
    assert seen[f"tidegate_bindings_total{{{paid}}}"] == 1
    assert seen["tidegate_admit_seconds_count"] == 10
    assert seen['tidegate_admit_seconds_bucket{le="+Inf"}'] == 10
    assert seen["tidegate_pins_created_total"] == 5
    assert seen['tidegate_store_seconds_count{operation="create",store="pins"}'] == 5
    assert seen["tidegate_hops_entered_total"] == 7
    assert seen['tidegate_flow_refusals_total{limit="flow_cycle_detected"}'] == 1


async def test_a_dry_run_is_no_decision(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        await http.served.report(health())
        await http.served.admit(dry_run=True)
        assert not [name for name in await http.metrics() if name.startswith("tidegate_decisions_total")]


async def test_errors_are_counted_apart_from_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise StoreUnavailable("pins")

    async with admin(tmp_path) as http:
        await http.served.report(health())
        await failure(http.served.admit("nothing-like-it"))
        monkeypatch.setattr(SqlitePinStore, "get", fails)
        await failure(http.served.admit())
        seen = await http.metrics()
    assert seen['tidegate_admit_errors_total{error="NotFound"}'] == 1
    assert seen['tidegate_admit_errors_total{error="StoreUnavailable"}'] == 1
    assert seen['tidegate_store_errors_total{operation="get",store="pins"}'] == 1
    assert seen["tidegate_admit_seconds_count"] == 0


async def test_facts_are_told_by_age_and_freshness_and_what_was_never_seen_is_unknown(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        served = http.served
        await served.report(engine(age=5), quota("claude", 50, "5h", age=1_000), quota("codex", 50, age=30))
        seen = await http.metrics()
    assert 5 <= seen['tidegate_fact_age_seconds{kind="health",provider="qwen"}'] < 10
    assert seen['tidegate_facts{freshness="fresh",kind="health",provider="qwen"}'] == 1
    assert seen['tidegate_facts{freshness="stale",kind="quota",provider="claude"}'] == 1
    assert seen['tidegate_facts{freshness="unknown",kind="quota",provider="claude"}'] == 1, "7d is required"
    assert seen['tidegate_facts{freshness="unknown",kind="quota",provider="codex"}'] == 0
    assert seen['tidegate_facts{freshness="unknown",kind="balance",provider="openrouter"}'] == 1
    assert seen['tidegate_facts{freshness="unknown",kind="availability",provider="openrouter"}'] == 1
    assert seen['tidegate_candidates{route="managed/routine",verdict="eligible"}'] == 2


async def test_money_that_tells_its_availability_leaves_nothing_unknown(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        await http.served.report(balance())
        seen = await http.metrics()
    assert seen['tidegate_facts{freshness="unknown",kind="availability",provider="openrouter"}'] == 0


async def test_feeds_the_log_and_the_reload_show(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        served = http.served
        async with served.collector("c", "qwen"):
            seen = await http.metrics()
            assert seen["tidegate_feeds"] == 1
            assert seen['tidegate_provider_feeds{provider="qwen"}'] == 1
            assert seen['tidegate_provider_feeds{provider="codex"}'] == 0
        await served.report(health())
        await served.admit()
        await http.written(1)
        served.directory.joinpath("tidegate.json").write_text('{"listen": 5}')
        await served.running.reload()
        seen = await http.metrics()
    assert seen["tidegate_decision_log_written_total"] == 1
    assert seen["tidegate_decision_log_dropped_total"] == 0
    assert seen["tidegate_configuration_last_reload_good"] == 0
    assert seen["tidegate_ready"] == 1
    assert seen['tidegate_dependency_works{dependency="pins"}'] == 1
    assert [v for name, v in seen.items() if name.startswith("tidegate_configuration_info{revision=")] == [1]


async def test_a_good_reload_shows_again(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        first = await http.metrics()
        assert first["tidegate_configuration_last_reload_good"] == 1
        assert first["tidegate_configuration_generation"] == 1
        http.served.write(SCENE)
        await http.served.running.reload()
        assert (await http.metrics())["tidegate_configuration_generation"] == 2


async def test_cold_waits_that_are_shed_show(tmp_path: Path) -> None:
    async with admin(tmp_path, limits={"maxColdWaiters": 1}) as http:
        http.served.application.cold_wait._max_waiters = 0
        await http.served.admit(timeout=2)
        seen = await http.metrics()
    assert seen["tidegate_cold_waits_shed_total"] == 1
    assert seen["tidegate_cold_waiting"] == 0


async def test_selections_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        served = http.served
        selection = selection_pb2_grpc.SelectionServiceStub(served.channel)
        query = selection_pb2.SelectAgentRequest(query="write a poem")
        await failure(selection.SelectAgent(query))
        agent = selection_pb2.Agent(agent_id="poet", name="Poet", description="writes poems")
        await selection.RegisterAgent(selection_pb2.RegisterAgentRequest(agent=agent), metadata=served.metadata)
        assert (await selection.SelectAgent(query)).fallback_used
        seen = await http.metrics()
        rates = (await http.data("/api/rates"))["samples"]
    assert seen['tidegate_selections_total{outcome="error"}'] == 1
    assert seen['tidegate_selections_total{outcome="fallback"}'] == 1
    assert seen["tidegate_select_seconds_count"] == 1
    assert (rates[-1]["selections"], rates[-1]["selections_fallback"]) == (2, 1)


async def test_the_text_is_well_formed_and_no_label_holds_what_a_caller_chose(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        text = (await http.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(family.documentation for family in families)
    for secret in ("worker-", "planner", "coder", HOSTILE[:4], *TRACES):
        assert secret not in text


async def test_the_answer_is_what_prometheus_asks_for(tmp_path: Path) -> None:
    async with admin(tmp_path) as http, httpx.AsyncClient(base_url=http.base) as client:
        answer = await client.get("/metrics", headers={"accept": "text/plain;version=0.0.4"})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert re.search(r"^process_resident_memory_bytes ", answer.text, re.MULTILINE)


def test_a_length_on_a_bound_belongs_below_it() -> None:
    latency = Latency()
    for length in (BOUNDS[0], BOUNDS[0] + 1, BOUNDS[-1] + 1):
        latency.observe(length)
    assert (latency.counts[0], latency.counts[1], latency.counts[-1], latency.count) == (1, 1, 1, 3)
    assert latency.total == 2 * BOUNDS[0] + BOUNDS[-1] + 2


async def test_rates_tell_what_fell_back_and_what_was_refused(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        (sample,) = (await http.data("/api/rates"))["samples"]
    del sample["end_time"]
    assert sample == {
        "admitted": 6, "refused": 3, "bypassed": 1, "fallback": 1, "paid": 1, "selections": 0,
        "selections_fallback": 0,
    }  # fmt: skip


async def test_a_refused_flow_request_counts_for_its_limit(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        await http.served.report(health())
        unknown = flow_pb2.FlowCheck(traceparent=f"00-{TRACES[0]}-00f067aa0ba902b7-01", agent="nobody")
        answer = await http.served.admit(flow=unknown)
        assert answer.verdict == types_pb2.VERDICT_REFUSED
        seen = await http.metrics()
    assert seen['tidegate_flow_refusals_total{limit="flow_unknown"}'] == 1
    assert seen['tidegate_decisions_total{reason="flow_unknown",route="managed/local",verdict="refused"}'] == 1


async def test_what_is_a_fallback_follows_a_reload(tmp_path: Path) -> None:
    def routed(*candidates: str) -> Json:
        return {**CONFIG, "managedRouting": {"routes": {"managed/both": route(*candidates)}}}

    async with admin(tmp_path, routed(CLAUDE, CODEX)) as http:
        served = http.served
        await served.report(quota("codex", 50), quota("claude", 0, "5h"), quota("claude", 50, "7d"))
        await served.admit("managed/both", "one")
        served.write(routed(CODEX, CLAUDE))
        await served.running.reload()
        await served.admit("managed/both", "two")
        seen = await http.metrics()
    labels = 'pin="new",provider="codex",route="managed/both",tier="subscription"'
    assert seen[f'tidegate_bindings_total{{fallback="true",{labels}}}'] == 1
    assert seen[f'tidegate_bindings_total{{fallback="false",{labels}}}'] == 1
