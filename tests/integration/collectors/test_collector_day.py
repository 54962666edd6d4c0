"""A day in the life of a route: an engine, two subscriptions and a paid account, read by their collectors.

Every half hour the providers' pages change and a new worker asks. What it is answered is worked out here a second time,
from what the pages say, by the words of §4.2 to §4.4 of the contract.
"""

import asyncio
import json
import random
from typing import Any

import pytest
from tidegate.v1 import types_pb2
from tidegate_collectors import station
from tidegate_server.core.model import SECOND
from tidegate_server.rpc import health
from tidegate_server.wiring import run

from tests.integration.collectors.conftest import World, account, local

RESERVE = 2
MAX_WAITING = 5
STEPS = 48
COLLECTORS = 4
ROUTE = {
    "purpose": "routine",
    "candidates": ["engine/m0", "claude/c", "codex/x", "router/deepseek-v4-flash"],
    "contextWindow": 32768,
    "maxContextBytes": 262144,
    "minRemainingPercent": RESERVE,
    "allowPaid": True,
}
ENGINES = {"healthy": "awake", "queueing": "awake", "asleep": "weights_offloaded", "gone": ""}
CLAUDE = {"fresh": (5, 10), "short": (5, 99), "session": (100, 40), "weekly": (1, 100), "no token": None}
CODEX = {"fresh": (20, True), "spent": (100, False), "contradictory": (100, True)}
MONEY = {"funded": 8.1, "unlimited": None, "overdrawn": -0.03}


def engine_page(state: str) -> str:
    """Return a vLLM page that always moves on: an engine that stands still has a test of its own."""
    waiting = MAX_WAITING + 1 if state == "queueing" else 0
    sleep = "".join(
        f'vllm:engine_sleep_state{{model_name="e",sleep_state="{each}"}} {int(each == ENGINES[state])}\n'
        for each in ("awake", "weights_offloaded", "discard_all")
    )
    return (
        f'vllm:num_requests_running{{model_name="e"}} 0\nvllm:num_requests_waiting{{model_name="e"}} {waiting}\n{sleep}'
    )


def show(world: World, day: dict[str, str]) -> None:
    """Let the stand-in answer as the day's state has it."""
    provider = world.provider
    provider.pages.clear()
    if day["engine"] != "gone":
        provider.serve("/health", b"")
        provider.serve("/metrics", engine_page(day["engine"]))
    used = CLAUDE[day["claude"]]
    if used is None:
        provider.sample("/api/oauth/usage", "claude-oauth-usage-401.txt")
    else:
        names = zip(("five_hour", "seven_day"), used, strict=True)
        provider.serve(
            "/api/oauth/usage", json.dumps({name: {"utilization": value, "resets_at": None} for name, value in names})
        )
    percent, allowed = CODEX[day["codex"]]
    window = {"used_percent": percent, "limit_window_seconds": 604800, "reset_after_seconds": 300_000}
    limit = {"allowed": allowed, "limit_reached": percent >= 100, "primary_window": window, "secondary_window": None}
    provider.serve("/backend-api/wham/usage", json.dumps({"plan_type": "plus", "rate_limit": limit}))
    left = MONEY[day["money"]]
    key = {"limit": None if left is None else 30, "limit_remaining": left, "limit_reset": None}
    provider.serve("/api/v1/key", json.dumps({"data": key}))


def answer(day: dict[str, str]) -> str:
    """Return the candidate that the policy binds, or nothing."""
    claude, codex = CLAUDE[day["claude"]], CODEX[day["codex"]]
    if day["engine"] == "healthy":
        return "engine/m0"
    if claude is not None and all(100 - used > RESERVE for used in claude):
        return "claude/c"
    if 100 - codex[0] > RESERVE:
        return "codex/x"
    # Both subscriptions are out. A refused token is no confirmed blocker of the default `paidOn`; the rest is.
    confirmed = claude is not None
    left = MONEY[day["money"]]
    return "router/deepseek-v4-flash" if confirmed and (left is None or left > 0) else ""


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))])
async def test_every_decision_of_a_day_is_the_policy_s(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    # Nothing is edited and nothing breaks on this day; looking for that every second is most of what it would cost.
    monkeypatch.setattr(run, "RELOAD_EVERY", 900 * SECOND)
    monkeypatch.setattr(health, "CHECK_EVERY", 900 * SECOND)
    monkeypatch.setattr(station, "HEARTBEAT", 900.0)
    dice = random.Random(seed)
    choices = {"engine": list(ENGINES), "claude": list(CLAUDE), "codex": list(CODEX), "money": list(MONEY)}
    show(world, {"engine": "gone", "claude": "fresh", "codex": "fresh", "money": "funded"})
    engine: dict[str, Any] = {**local("e"), "saturation": {"maxWaiting": MAX_WAITING, "maxKvUsage": 0.8}}
    await world.serve(
        {
            "engine": engine,
            "claude": {**account("subscription", "c"), "requiredWindows": ["5h", "7d"]},
            "codex": account("subscription", "x"),
            "router": account("paid", "deepseek-v4-flash"),
        },
        {"managed/day": ROUTE},
    )
    paid = {"url": world.provider.url, "auth": {"bearer_env": "SECRET"}, "unofficial": True, "every": "15m"}
    await world.collect(
        {"preset": "vllm", "provider": "engine", "url": world.provider.url, "every": "15m"},
        {"preset": "claude-usage", "provider": "claude", **paid},
        {"preset": "codex-usage", "provider": "codex", **paid},
        {"preset": "openrouter", "provider": "router", **paid},
    )
    await world.wait(lambda _: world.readings() >= COLLECTORS)
    seen = set()
    for step in range(STEPS):
        day = {name: dice.choice(states) for name, states in choices.items()}
        show(world, day)
        # Every collector reads every quarter of an hour: in the middle, and now.
        for _ in range(2):
            before = world.readings()
            await world.advance(900, step=900)
            await world.wait(lambda _, before=before: world.readings() >= before + COLLECTORS)  # type: ignore[misc]
        admission = await asyncio.wait_for(world.client.admit("managed/day", f"worker-{step}", 1000), 10)
        bound = admission.binding.candidate if admission.binding else ""
        assert bound == answer(day), (step, day, admission.message, await world.facts())
        if admission.binding and admission.binding.tier == types_pb2.TIER_PAID:
            assert {evidence.candidate for evidence in admission.response.evidence} == {"claude/c", "codex/x"}
        seen.add(bound)
    assert seen == {"engine/m0", "claude/c", "codex/x", "router/deepseek-v4-flash", ""}
