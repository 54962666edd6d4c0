"""Every provider's answers, read from a loopback server, through the real feed into a real server."""

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import yaml
from tidegate_collectors.facts import Source
from tidegate_collectors.presets import find
from tidegate_collectors.sampling import read_sample, report

from tests.integration.collectors.conftest import VECTORS, World, account, local

NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)
COPILOT = {
    "quota_snapshots": {
        "chat": {"entitlement": 0, "remaining": 0, "percent_remaining": 100.0, "unlimited": True},
        "premium_interactions": {"entitlement": 300, "remaining": -45, "percent_remaining": -15.0, "unlimited": False},
    },
    "quota_reset_date": "2026-11-01",
}
TGI = "tgi_batch_current_size 3\ntgi_queue_size 1\n"
NIM = """num_requests_running{model_name="m"} 2
num_requests_waiting{model_name="m"} 0
gpu_cache_usage_perc{model_name="m"} 0.25
"""
ROUTER = {"data": [{"id": "a", "status": {"value": "loaded"}}, {"id": "b", "status": {"value": "sleeping"}}]}
LMSTUDIO = {"data": [{"id": "a", "state": "loaded"}, {"id": "b", "state": "not-loaded"}]}

POLLED: list[tuple[str, str, str | bytes, dict[str, Any], dict[str, Any]]] = [
    ("vllm", "/metrics", "vllm-steady.prom", local("Qwen/Qwen3-30B-A3B-Instruct"), {}),
    ("vllm", "/metrics", "vllm-legacy-names.prom", local("meta-llama/Llama-3.1-8B-Instruct"), {}),
    ("vllm", "/metrics", "vllm-sleeping.prom", local("Qwen/Qwen3-30B-A3B-Instruct"), {}),
    ("nim", "/v1/metrics", NIM.encode(), local("m"), {}),
    ("sglang", "/metrics", "sglang-priority-breakdown.prom", local("meta-llama/Llama-3.1-8B-Instruct"), {}),
    ("sglang", "/metrics", "sglang-stalled-queue.prom", local("meta-llama/Llama-3.1-8B-Instruct"), {}),
    ("llamacpp", "/metrics", "llamacpp-metrics.prom", local("qwen3-8b"), {"model": "qwen3-8b"}),
    ("llamacpp", "/slots", "llamacpp-slots.json", local("qwen3-8b"), {"model": "qwen3-8b"}),
    ("llamacpp", "/health", "llamacpp-health-loading.txt", local("qwen3-8b"), {"model": "qwen3-8b"}),
    ("llamacpp-router", "/models", json.dumps(ROUTER).encode(), local("a", "b"), {}),
    ("tgi", "/metrics", TGI.encode(), local("m"), {"model": "m"}),
    ("ollama", "/api/ps", "ollama-ps-loaded.json", local("gemma4:latest"), {}),
    ("lmstudio", "/api/v0/models", json.dumps(LMSTUDIO).encode(), local("a", "b"), {}),
    ("openrouter", "/api/v1/key", "openrouter-key-limited.json", account("paid"), {}),
    ("openrouter", "/api/v1/key", "openrouter-key-unlimited.json", account("paid"), {}),
    ("deepseek", "/user/balance", "deepseek-balance-two-currencies.json", account("paid"), {}),
    ("claude-usage", "/api/oauth/usage", "claude-oauth-usage-one-percent.json", account("subscription"), {}),
    ("claude-usage", "/api/oauth/usage", "claude-oauth-usage-not-started.json", account("subscription"), {}),
    ("claude-usage", "/api/oauth/usage", "claude-oauth-usage-weekly-exhausted.json", account("subscription"), {}),
    ("claude-usage", "/api/oauth/usage", "claude-oauth-usage-401.txt", account("subscription"), {}),
    ("codex-usage", "/backend-api/wham/usage", "codex-usage-weekly-in-primary.json", account("subscription"), {}),
    ("copilot-user", "/copilot_internal/user", json.dumps(COPILOT).encode(), account("subscription"), {}),
]


def told(observation: dict[str, Any]) -> str:
    """Return an observation without time, sequence and model (the server has its own name for it).

    A scope that is a model's is the model (§3.5).
    """
    quota = observation.get("quota", {})
    if quota.get("scope", "").startswith("model:"):
        observation = {**observation, "quota": {key: value for key, value in quota.items() if key != "scope"}}
    return json.dumps({**observation, "model": "", "observeTime": "", "age": "", "sequence": ""}, sort_keys=True)


@pytest.mark.parametrize(("preset", "path", "page", "provider", "settings"), POLLED, ids=lambda value: None)
async def test_a_polled_provider_is_known_with_its_true_age(
    world: World, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, preset: str, path: str, page: str | bytes,
    provider: dict[str, Any], settings: dict[str, Any],
) -> None:  # fmt: skip
    monkeypatch.setenv("SECRET", "s3cret")
    sample = VECTORS / "samples" / page if isinstance(page, str) else tmp_path / "page"
    if isinstance(page, bytes):
        sample.write_bytes(page)
    source = Source(provider="p", model=settings.get("model", ""))
    expected = report(read_sample(find(preset).parser(), sample, source, NOW), source, NOW)["observations"]
    assert expected
    world.provider.serve(path, sample.read_bytes())
    if find(preset).liveness and path != find(preset).liveness:
        world.provider.serve(find(preset).liveness, b'{"status":"ok"}')
    auth = {"auth": {"bearer_env": "SECRET"}} if provider["kind"] != "local" else {}
    await world.serve({"p": provider})
    await world.collect(
        {"preset": preset, "provider": "p", "url": world.provider.url, "unofficial": True, **auth, **settings}
    )
    wanted = {told(observation) for observation in expected}
    await world.wait(lambda facts: wanted <= {told(fact["observation"]) for fact in facts})
    world.provider.pages.clear()
    await world.clock.advance(3_000_000_000)
    ages = {fact["age"] for fact in await world.facts() if told(fact["observation"]) in wanted}
    assert ages == {"3s"}
    assert set(world.provider.shown) == ({"Bearer s3cret"} if auth else set())


OBSERVED = [
    ("openai", "openai-200-headers.txt", "paid", "gpt-4o-2024-08-06"),
    ("openai", "openai-429-credit-exhausted.txt", "paid", ""),
    ("anthropic", "anthropic-400-org-disabled.txt", "paid", ""),
    ("anthropic", "anthropic-529.txt", "paid", "claude-sonnet-5"),
    ("claude", "claude-unified-200.txt", "subscription", ""),
    ("claude", "claude-unified-429-window.txt", "subscription", ""),
    ("codex", "clock-skew-429.txt", "subscription", ""),
    ("copilot", "copilot-headers.txt", "subscription", ""),
    ("openrouter", "openrouter-402-inflight.txt", "paid", ""),
    ("openrouter", "openrouter-200-midstream-error.txt", "paid", "openai/gpt-4o"),
    ("deepseek", "claude-oauth-usage-401.txt", "paid", ""),
]


@pytest.mark.parametrize(("preset", "sample", "kind", "model"), OBSERVED)
async def test_a_response_that_a_gateway_hands_over_is_known(
    world: World, tmp_path: Any, preset: str, sample: str, kind: str, model: str
) -> None:
    token = tmp_path / "observer.token"
    token.write_text("hand-over\n")
    await world.serve({"p": account(kind, model or "some-model")})
    entry = {"provider": "p", "preset": preset, "observed": True}
    await world.collect(entry, observer={"listen": "127.0.0.1:0", "token_file": str(token)})
    source = Source(provider="p", model=model)
    file = VECTORS / "samples" / sample
    expected = report(read_sample(find(preset).parser(), file, source, NOW), source, NOW)["observations"]
    head, _, body = file.read_text().partition("\n\n")
    status_line, *lines = head.splitlines()
    handed = {
        "provider": "p",
        "model": model,
        "status": int(status_line.split()[1]),
        "headers": dict(line.split(": ", 1) for line in lines),
        "body": body,
    }
    host, port = world.service.addresses["observer"]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as http:
        refused = await http.post("/v1/responses", json=handed, headers={"authorization": "Bearer guess"})
        assert refused.status_code == 401
        assert await world.facts() == []
        taken = await http.post("/v1/responses", json=handed, headers={"authorization": "Bearer hand-over"})
        assert taken.status_code == 200
        assert taken.json()["facts"]
    wanted = {told(observation) for observation in expected}
    await world.wait(lambda facts: wanted <= {told(fact["observation"]) for fact in facts})


MAPPED = [
    ("vllm-a", "vllm-steady.prom", local("Qwen/Qwen3-30B-A3B-Instruct")),
    ("deepseek-main", "deepseek-balance-two-currencies.json", account("paid")),
    ("codex", "codex-usage-weekly-in-primary.json", account("subscription")),
    ("or-key", "openrouter-key-limited.json", account("paid")),
]


@pytest.mark.parametrize(("name", "sample", "provider"), MAPPED)
async def test_a_mapping_feeds_what_the_preset_would(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, sample: str, provider: dict[str, Any]
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "s3cret")
    monkeypatch.setenv("OPENROUTER_API_KEY", "s3cret")
    mappings = yaml.safe_load((VECTORS / "generic.yaml").read_text())
    mapping = next(case["collector"] for case in mappings if case["collector"]["id"] == name)
    for kind in ("http", "prometheus", "liveness"):
        if kind in mapping:
            mapping[kind]["url"] = f"{world.provider.url}/{kind}"
    world.provider.serve("/liveness", b"")
    file = VECTORS / "samples" / sample
    for path in ("/http", "/prometheus"):
        world.provider.serve(path, file.read_bytes())
    source = Source(provider="p")
    preset = find({"vllm-a": "vllm", "deepseek-main": "deepseek", "or-key": "openrouter"}.get(name, name))
    expected = report(read_sample(preset.parser(), file, source, NOW), source, NOW)["observations"]
    await world.serve({"p": provider})
    await world.collect({**{key: value for key, value in mapping.items() if key != "account"}, "provider": "p"})
    wanted = {told(observation) for observation in expected}
    await world.wait(lambda facts: wanted <= {told(fact["observation"]) for fact in facts})


async def test_session_files_are_known_with_the_age_of_their_lines(world: World, tmp_path: Any) -> None:
    sessions = tmp_path / "sessions/2026/10/20"
    sessions.mkdir(parents=True)
    lines = (VECTORS / "samples/codex-rollout-conflict.txt").read_bytes()
    (sessions / "rollout-1.jsonl").write_bytes(lines)
    await world.serve({"p": account("subscription")})
    await world.collect(
        {"preset": "codex-rollout", "provider": "p", "files": [f"{tmp_path}/sessions/**/rollout-*.jsonl"]}
    )
    facts = await world.wait(lambda facts: sum("quota" in fact["observation"] for fact in facts) == 2)
    ages = {fact["observation"]["quota"]["window"]: float(fact["age"].removesuffix("s")) for fact in facts}
    assert ages == {"5h": 79.5, "7d": 118.9}
