"""What the core is given, compiled of a configuration."""

import os
import subprocess
import sys
from pathlib import Path

from tidegate_server.config import Configuration, compile_policy, flow_settings, load, parse, revision
from tidegate_server.core.fingerprint import binding_fingerprint, policy_fingerprint
from tidegate_server.core.model import SECOND, Tier
from tidegate_server.core.policy import CatalogEntry, FreshnessLimits, KnownProvider, Saturation

GOOD = Path(__file__).parent / "good"

TWO_ROUTES = """
providers:
  engine: {kind: local, credential: none, sessionAffinity: true, saturation: {maxWaiting: 0},
    models: {tiny: {alias: t, contextWindow: 4096, reasoningEfforts: [low, medium, high], engineNames: [org/Tiny, t2]}}}
  account: {kind: subscription, credential: login:a, requiredWindows: [5h, 1mo/premium],
    models: {big: {contextWindow: 9000, reasoningEfforts: [high, medium], metadata: {family: f}},
      shared: {contextWindow: 9000}}}
  other: {kind: paid, credential: env:KEY, models: {shared: {contextWindow: 9000, reasoningEfforts: [high]}}}
freshness: {health: 1s}
coldWait: 1s
managedRouting:
  paidModels: [shared]
  routes:
    managed/a: {purpose: routine, candidates: [other/shared, account/big, t], contextWindow: 4096, maxContextBytes: 10,
      allowPaid: true, candidateReasoningEfforts: {t: low}, autoCompactTokenLimit: 3000}
    managed/b: {purpose: review, candidates: [account/big], contextWindow: 9000, maxContextBytes: 10}
"""


def test_candidates_stand_in_the_order_of_preference_and_keep_their_names() -> None:
    policy = compile_policy(parse(TWO_ROUTES))
    route = policy.routes["managed/a"]
    assert [candidate.name for candidate in route.candidates] == ["t", "account/big", "other/shared"]
    tiny, big, _ = route.candidates
    assert (tiny.provider, tiny.model, tiny.tier, tiny.mapped_effort) == ("engine", "tiny", Tier.LOCAL, "low")
    assert (tiny.saturation, tiny.session_affinity) == (Saturation(0, None), True)
    assert big.required_windows == (("5h", ""), ("1mo", "premium"))
    assert (big.credential_source, big.saturation, big.mapped_effort) == ("login:a", None, "")
    assert big.binding_fingerprint == binding_fingerprint(
        provider="account", kind=Tier.SUBSCRIPTION, credential="login:a", model="big"
    )
    assert (policy.cold_wait, policy.freshness) == (SECOND, FreshnessLimits(health=SECOND))


def test_the_fingerprint_is_of_what_the_file_says_in_its_order() -> None:
    assert compile_policy(parse(TWO_ROUTES)).routes["managed/a"].fingerprint == policy_fingerprint(
        purpose="routine",
        candidates=["other/shared", "account/big", "t"],
        context_window=4096,
        max_context_bytes=10,
        allow_paid=True,
        auto_compact_token_limit=3000,
        candidate_reasoning_efforts={"t": "low"},
    )


def test_the_seeds_route_and_the_contracts_are_one_policy() -> None:
    """The same settings in JSON and YAML, with the reserve left out or spelled, beside other providers' details."""
    seed = compile_policy(load(GOOD / "seed.json", {})).routes["managed/routine"]
    contract = compile_policy(load(GOOD / "contract.yaml", {})).routes["managed/routine"]
    assert seed.fingerprint == contract.fingerprint
    assert seed.fingerprint == "8d4d11d4ee6761a3b3825407785d36f80546c59bc01a1186a4674b8aa7492f16"


def test_a_model_is_found_by_every_name_that_means_it_alone() -> None:
    models = compile_policy(parse(TWO_ROUTES)).models
    assert {name: candidate.name for name, candidate in models.items()} == {
        "engine/tiny": "t",
        "t": "t",
        "tiny": "t",
        "account/big": "account/big",
        "big": "account/big",
        "account/shared": "account/shared",
        "other/shared": "other/shared",
    }
    assert models["tiny"].mapped_effort == "", "a route's map is for the route alone"


def test_a_bare_name_that_is_another_models_alias_means_the_alias() -> None:
    text = TWO_ROUTES.replace("alias: t,", "alias: big,").replace("account/big, t]", "account/big, big]")
    models = compile_policy(parse(text.replace("{t: low}", "{big: low}"))).models
    assert (models["big"].provider, models["account/big"].provider) == ("engine", "account")


def test_observations_may_use_the_engines_names() -> None:
    providers = compile_policy(parse(TWO_ROUTES)).providers
    assert providers["engine"] == KnownProvider(Tier.LOCAL, {"tiny": "tiny", "org/Tiny": "tiny", "t2": "tiny"})
    assert providers["account"].models == {"big": "big", "shared": "shared"}


def test_the_catalog_has_fixed_models_first_and_routes_with_common_efforts() -> None:
    catalog = compile_policy(parse(TWO_ROUTES)).catalog
    assert [entry.id for entry in catalog] == [
        "t", "account/big", "account/shared", "other/shared", "managed/a", "managed/b"
    ]  # fmt: skip
    assert catalog[1] == CatalogEntry("account/big", False, 9000, ("high", "medium"), metadata={"family": "f"})
    assert catalog[4] == CatalogEntry("managed/a", True, 4096, ("high",), 3000, "v2")
    assert catalog[5].reasoning_efforts == ("high", "medium")


def test_profiles_inherit_what_they_leave_out() -> None:
    c = parse("flow: {maxDepth: 3, profiles: {coding: {maxTokens: 7, timeout: 30m}, plain: {}}}")
    limits = flow_settings(c).limits
    assert limits[""] == limits["plain"] == (3, 20, 100_000, 120 * SECOND)
    assert limits["coding"] == (3, 20, 7, 1800 * SECOND)


def test_the_revision_tells_configurations_apart_and_spellings_not() -> None:
    text = (GOOD / "spellings.yaml").read_text()
    first = revision(parse(text))
    assert compile_policy(parse(text)).revision == first
    same = text.replace("32768.0", "32768").replace("0.25s", "250ms").replace("15.0", "15").replace("\n", "\r\n")
    same = same.replace("[PROVIDER_DOWN, AUTH_FAILED, PROVIDER_DOWN]", "[AUTH_FAILED, PROVIDER_DOWN]  # a comment")
    assert revision(parse(same)) == first
    for old, new in (
        ("15.0", "15.5"),
        ("0.25s", "0.26s"),
        ("kind: subscription", "kind: subscription, credential: l:a"),
    ):
        assert old in text
        assert revision(parse(text.replace(old, new))) != first


def stores(password: str) -> Configuration:
    url = f"postgresql://u:{password}@h/d"
    return parse(f"stores: {{durable: '{url}', live: 'redis://h'}}\nkeys: {{pins: a, tracestate: [b]}}")


def test_a_password_is_in_no_revision() -> None:
    assert revision(stores("one")) == revision(stores("two"))


def test_every_worker_process_has_the_same_fingerprints() -> None:
    program = f"""
from tidegate_server.config import compile_policy, load
policy = compile_policy(load({str(GOOD / "spellings.yaml")!r}, {{}}))
print(policy.revision, *(route.fingerprint for route in policy.routes.values()))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(1, 5)
    }
    assert len(found) == 1
