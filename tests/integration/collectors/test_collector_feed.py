"""What happens to facts when something breaks: the server, a provider, a credential, a clock."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from tidegate.v1 import types_pb2
from tidegate_collectors.facts import Reading
from tidegate_collectors.readers import PageReader

from tests.integration.collectors.conftest import World, account, kind_of, local

PAGE = """vllm:num_requests_running{{model_name="e"}} {running}
vllm:generation_tokens_total{{model_name="e"}} {tokens}
"""
ROUTE = {"purpose": "routine", "candidates": ["p/m0"], "contextWindow": 32768, "maxContextBytes": 262144}


def health(facts: list[dict[str, Any]]) -> dict[str, Any]:
    return next((fact["observation"]["health"] for fact in facts if "health" in fact["observation"]), {})


def windows(facts: list[dict[str, Any]]) -> dict[str, float]:
    quotas = [fact["observation"]["quota"] for fact in facts if "quota" in fact["observation"]]
    return {quota["window"]: quota.get("remainingPercent", 0.0) for quota in quotas}


def blockers(facts: list[dict[str, Any]]) -> set[str]:
    rows = [fact["observation"]["availability"] for fact in facts if kind_of(fact) == "availability"]
    return {row["blocker"].removeprefix("BLOCKER_") for row in rows if row["state"].endswith("BLOCKED")}


async def engine(world: World, **settings: Any) -> None:
    """Start a world with one vLLM engine that answers."""
    world.provider.serve("/health", b"")
    world.provider.serve("/metrics", PAGE.format(running=1, tokens=1))
    await world.serve({"p": local("e")}, {"managed/r": ROUTE})
    await world.collect({"preset": "vllm", "provider": "p", "url": world.provider.url, **settings})
    await world.wait(lambda facts: health(facts).get("state") == "HEALTH_STATE_HEALTHY")


def usage(**used: float) -> str:
    names = {"w5h": "five_hour", "w7d": "seven_day"}
    return json.dumps({names[key]: {"utilization": value, "resets_at": None} for key, value in used.items()})


async def subscription(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a world with one Claude account whose usage endpoint answers."""
    monkeypatch.setenv("SECRET", "first")
    world.provider.serve("/api/oauth/usage", usage(w5h=10, w7d=20))
    await world.serve({"p": account("subscription")})
    settings = {"preset": "claude-usage", "unofficial": True, "auth": {"bearer_env": "SECRET"}}
    await world.collect({"provider": "p", "url": world.provider.url, **settings})
    await world.wait(lambda facts: windows(facts) == {"5h": 90, "7d": 80})


async def test_a_server_that_restarts_is_told_again_with_the_true_age(world: World) -> None:
    await engine(world, every="60s")
    await world.clock.advance(4_000_000_000)
    await world.stop()
    asked = len(world.provider.asked)
    restarting = asyncio.create_task(world.restart())
    await world.advance(1)
    await restarting
    for _ in range(10):
        await world.advance(0.2)
    (fact,) = [fact for fact in await world.facts() if "health" in fact["observation"]]
    assert 5 <= float(fact["age"].removesuffix("s")) <= 8
    assert len(world.provider.asked) == asked, "it is said again from memory, not read again"


async def test_a_fact_goes_stale_when_its_source_stops_answering_and_the_error_is_no_fact(world: World) -> None:
    await engine(world)
    world.provider.pages.clear()
    await world.advance(14)
    assert {fact["freshness"] for fact in await world.facts()} == {"FRESHNESS_FRESH"}
    await world.advance(2)
    (fact,) = await world.facts()
    assert fact["freshness"] == "FRESHNESS_STALE"
    assert health([fact])["state"] == "HEALTH_STATE_HEALTHY"


async def test_a_refresh_is_answered_at_once(world: World) -> None:
    await engine(world, every="10m")
    await world.advance(20)
    assert {fact["freshness"] for fact in await world.facts()} == {"FRESHNESS_STALE"}
    world.provider.serve("/metrics", PAGE.format(running=2, tokens=2))
    admission = await world.client.admit("managed/r", "w1", 100)
    assert admission.may_forward, admission.message
    assert health(await world.facts())["running"] == "2"


async def test_a_refresh_that_fails_is_said_so_nobody_waits(world: World) -> None:
    await engine(world, every="10m")
    await world.advance(20)
    world.provider.pages.clear()
    admission = await asyncio.wait_for(world.client.admit("managed/r", "w1", 100), 2.0)
    assert admission.refusal is not None
    assert admission.refusal.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN


async def test_a_half_dead_endpoint_is_an_error_in_time_and_no_fact(world: World) -> None:
    await engine(world, every="10m", timeout="50ms")
    await world.advance(20)
    world.provider.hold = True
    admission = await asyncio.wait_for(world.client.admit("managed/r", "w1", 100), 2.0)
    world.provider.hold = False
    assert not admission.may_forward
    assert "no whole answer within" in str(world.service.meters.summary()["p/vllm"])


async def test_an_engine_that_stands_still_is_unhealthy_and_heals(world: World) -> None:
    await engine(world)
    await world.advance(40)
    assert health(await world.facts())["state"] == "HEALTH_STATE_UNHEALTHY"
    assert (await world.client.admit("managed/r", "w1", 100)).refusal is not None
    world.provider.serve("/metrics", PAGE.format(running=1, tokens=9))
    await world.advance(7)
    assert health(await world.facts())["state"] == "HEALTH_STATE_HEALTHY"


async def test_an_engine_that_dies_behind_its_page_is_unhealthy_under_the_names_it_had(world: World) -> None:
    await engine(world)
    world.provider.serve("/health", b"", status="503 Service Unavailable")
    await world.advance(7)
    (fact,) = await world.facts()
    assert (fact["observation"]["model"], health([fact])["state"]) == ("m0", "HEALTH_STATE_UNHEALTHY")


async def test_a_canary_proves_that_frozen_gauges_are_no_hung_engine(world: World) -> None:
    world.provider.serve("/v1/completions", b"{}")
    await engine(world, canary={})
    await world.advance(100)
    sent = [path for path in world.provider.asked if path == "/v1/completions"]
    assert 1 <= len(sent) <= 4, "at most one in 30 s"
    assert health(await world.facts())["state"] == "HEALTH_STATE_HEALTHY"


async def test_a_refresh_never_calls_inference(world: World) -> None:
    world.provider.serve("/v1/completions", b"{}")
    await engine(world, canary={}, every="10m")
    await world.advance(40)
    admission = await world.client.admit("managed/r", "w1", 100)
    assert not admission.may_forward
    assert "/v1/completions" not in world.provider.asked
    assert health(await world.facts())["state"] == "HEALTH_STATE_UNHEALTHY"


async def test_a_401_that_appears_blocks_and_a_success_clears_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscription(world, monkeypatch)
    good = world.provider.pages["/api/oauth/usage"]
    world.provider.sample("/api/oauth/usage", "claude-oauth-usage-401.txt")
    await world.advance(335)
    assert blockers(await world.facts()) == {"AUTH_FAILED"}
    world.provider.pages["/api/oauth/usage"] = good
    await world.advance(335)
    facts = await world.facts()
    assert blockers(facts) == set()
    assert windows(facts) == {"5h": 90, "7d": 80}


async def test_a_throttled_meter_is_left_alone_longer_each_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscription(world, monkeypatch)
    world.provider.sample("/api/oauth/usage", "claude-oauth-usage-429.txt")
    before = len(world.provider.asked)
    await world.advance(3000)
    assert 3 <= len(world.provider.asked) - before <= 4, "after 5, 10, 20 and 40 minutes"
    assert blockers(await world.facts()) == set()


async def test_another_credential_takes_back_what_was_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscription(world, monkeypatch)
    monkeypatch.setenv("SECRET", "second")
    world.provider.serve("/api/oauth/usage", b"", status="500 Internal Server Error")
    await world.advance(335)
    assert windows(await world.facts()) == {}
    assert set(world.provider.shown) == {"Bearer first", "Bearer second"}


async def test_a_window_that_is_no_longer_named_is_taken_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscription(world, monkeypatch)
    world.provider.serve("/api/oauth/usage", usage(w7d=30))
    await world.advance(335)
    assert windows(await world.facts()) == {"7d": 70}


async def test_a_window_that_is_named_but_unreadable_only_ages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscription(world, monkeypatch)
    broken = json.loads(usage(w5h=10, w7d=30))
    broken["five_hour"]["utilization"] = "n/a"
    world.provider.serve("/api/oauth/usage", json.dumps(broken))
    await world.advance(335)
    facts = await world.facts()
    assert windows(facts) == {"5h": 90, "7d": 70}
    ages = {
        fact["observation"]["quota"]["window"]: float(fact["age"][:-1]) for fact in facts if kind_of(fact) == "quota"
    }
    assert ages["5h"] > 300 > ages["7d"]


async def test_a_wall_clock_that_steps_changes_no_age(world: World) -> None:
    await engine(world, every="60s")
    await world.clock.advance(2_000_000_000)
    for step in (3600, -7200):
        world.clock.step_wall(step * 1_000_000_000)
        (fact,) = [fact for fact in await world.facts() if "health" in fact["observation"]]
        assert fact["age"] == "2s"
        assert fact["freshness"] == "FRESHNESS_FRESH"


async def test_nothing_is_fed_without_the_token(world: World) -> None:
    await world.serve({"p": local("e")})
    world.token.write_text("guess")
    await world.collect({"preset": "vllm", "provider": "p", "url": world.provider.url})
    await world.advance(3)
    assert not world.service.meters.well()


async def test_a_status_page_is_advice_and_covers_nothing(world: World) -> None:
    world.provider.serve("/api/v2/summary.json", json.dumps({"status": {"indicator": "major"}, "components": []}))
    await world.serve({"p": account("subscription")})
    await world.collect({"preset": "statuspage", "provider": "p", "url": world.provider.url})
    await world.wait(lambda _: world.readings() == 1)
    assert await world.facts() == []
    assert 'tidegate_collector_advisory{provider="p"} 1.0' in world.service.meters.page().decode()
    assert world.service.meters.well()


async def test_a_fault_in_one_collector_is_its_own_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine(world, every="1m")
    monkeypatch.setattr(PageReader, "read", broken)
    await world.advance(65)
    assert "fault in the collector: ZeroDivisionError" in str(world.service.meters.summary()["p/vllm"])
    monkeypatch.undo()
    await world.advance(65)
    assert world.service.meters.summary()["p/vllm"] == {"connected": True, "error": None}


async def broken(self: PageReader, *, refresh: bool) -> Reading:
    raise ZeroDivisionError


async def test_the_process_shows_its_own_health_and_metrics(world: World) -> None:
    await engine(world)
    page = world.service.meters.page().decode()
    assert 'tidegate_collector_readings_total{collector="p/vllm",outcome="ok"} 1.0' in page
    assert 'tidegate_collector_connected{collector="p/vllm"} 1.0' in page
    assert 'tidegate_collector_facts{collector="p/vllm"} 1.0' in page
    assert world.service.meters.well()


async def test_health_and_metrics_are_served_on_this_machine(world: World) -> None:
    world.provider.serve("/metrics", PAGE.format(running=1, tokens=1))
    await world.serve({"p": local("e")})
    entry = {"preset": "vllm", "provider": "p", "url": world.provider.url}
    await world.collect(entry, listen="127.0.0.1:0")
    await world.wait(lambda facts: health(facts) != {})
    host, port = world.service.addresses["listen"]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as http:
        well = await http.get("/healthz")
        assert (well.status_code, well.json()["collectors"]["p/vllm"]) == (200, {"connected": True, "error": None})
        assert "tidegate_collector_facts" in (await http.get("/metrics")).text
        await world.stop()
        await world.wait_for(lambda: not world.service.meters.well())
        assert (await http.get("/healthz")).status_code == 503


async def test_hello_tells_how_often_it_reads_and_whether_it_can_be_asked(world: World) -> None:
    await engine(world, every="60s")
    status = await world.client.get_status()
    assert any("p" in warning and "60" in warning for warning in status.warnings), list(status.warnings)
