"""The canonical form, and fingerprints that no order, process or spelling changes."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_server.core.fingerprint import binding_fingerprint, canonical, fingerprint, policy_fingerprint
from tidegate_server.core.model import Blocker, Tier
from tidegate_server.core.policy import PAID_ON_DEFAULT

ROUTINE: Mapping[str, Any] = {
    "purpose": "routine",
    "candidates": ("qwen/qwen3.8-flash-next", "claude-primary/claude-sonnet-5-5", "codex/gpt-6.1-sol", "or-deepseek"),
    "context_window": 32768,
    "max_context_bytes": 262144,
    "allow_paid": True,
}
"""The route of the contract's example."""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "null"),
        (True, "true"),
        (15, "15"),
        (15.0, "15"),
        (-0.0, "0"),
        (15.5, "15.5"),
        (0.1, "0.1"),
        (1e-7, "0.0000001"),
        (1e21, "1000000000000000000000"),
        (2**63 - 1, "9223372036854775807"),
        ('a"b\\c\n\x1f/é\x7f😀', '"a\\"b\\\\c\\n\\u001f/é\x7f😀"'),
        ([2, "x", []], '[2,"x",[]]'),
        ({"b": 1, "a": {"é": 2, "z": 3}, "B": 4}, '{"B":4,"a":{"z":3,"é":2},"b":1}'),
    ],
)
def test_canonical_form(value: Any, written: str) -> None:
    assert canonical(value) == written
    assert fingerprint(value) == hashlib.sha256(written.encode()).hexdigest()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_has_no_canonical_form(number: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        canonical({"n": [number]})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=10,
)


@given(json_values)
@settings(deadline=None)
def test_the_canonical_form_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical(value), parse_int=float, parse_float=float) == json.loads(
        json.dumps(value), parse_int=float, parse_float=float
    )


def test_golden_policy_fingerprints() -> None:
    """These never change: a pin of any earlier version is compared with them."""
    covered = (
        '{"allowPaid":true,"candidates":["qwen/qwen3.8-flash-next","claude-primary/claude-sonnet-5-5",'
        '"codex/gpt-6.1-sol","or-deepseek"],"contextWindow":32768,"maxContextBytes":262144,"purpose":"routine"}'
    )
    golden = hashlib.sha256(covered.encode()).hexdigest()
    assert golden == "8d4d11d4ee6761a3b3825407785d36f80546c59bc01a1186a4674b8aa7492f16"
    assert policy_fingerprint(**ROUTINE) == golden
    everything = (
        '{"allowPaid":true,"autoCompactTokenLimit":900,"candidateReasoningEfforts":{"a/b":"high","c":"low"},'
        '"candidates":["c","a/b"],"contextWindow":1000,"maxContextBytes":4096,"minRemainingPercent":2.5,'
        '"paidOn":["AUTH_FAILED","QUOTA_EXHAUSTED"],"preferPaidFlash":true,"purpose":"routine","requireFlow":true}'
    )
    assert (
        policy_fingerprint(
            purpose="routine",
            candidates=["c", "a/b"],
            context_window=1000,
            max_context_bytes=4096,
            min_remaining_percent=2.5,
            allow_paid=True,
            prefer_paid_flash=True,
            require_flow=True,
            paid_on={Blocker.QUOTA_EXHAUSTED, Blocker.AUTH_FAILED},
            auto_compact_token_limit=900,
            candidate_reasoning_efforts={"c": "low", "a/b": "high"},
        )
        == hashlib.sha256(everything.encode()).hexdigest()
    )


def test_golden_binding_fingerprint() -> None:
    covered = (
        '{"credential":"env:OPENROUTER_API_KEY","kind":"paid","model":"deepseek/deepseek-v4-flash","provider":"or"}'
    )
    found = binding_fingerprint(
        provider="or", kind=Tier.PAID, credential="env:OPENROUTER_API_KEY", model="deepseek/deepseek-v4-flash"
    )
    assert found == hashlib.sha256(covered.encode()).hexdigest()
    assert found == "db1ef2e467197db3a00f56f1d018a45eef22e9133ba006a3b8e133b28988417d"


@pytest.mark.parametrize(
    "same",
    [
        {"min_remaining_percent": 2},
        {"min_remaining_percent": 2.0},
        {"prefer_paid_flash": False},
        {"require_flow": False},
        {"paid_on": PAID_ON_DEFAULT},
        {"paid_on": [Blocker.ACCOUNT_DISABLED, Blocker.QUOTA_EXHAUSTED] * 2 + [Blocker.QUOTA_BELOW_RESERVE]},
        {"auto_compact_token_limit": None},
        {"candidate_reasoning_efforts": {}},
        {"candidate_reasoning_efforts": None},
        {"context_window": 32768.0},
    ],
    ids=str,
)
def test_a_setting_at_its_default_is_left_out(same: Mapping[str, Any]) -> None:
    assert policy_fingerprint(**{**ROUTINE, **same}) == policy_fingerprint(**ROUTINE)


@pytest.mark.parametrize(
    "other",
    [
        {"purpose": "strong"},
        {"candidates": tuple(reversed(ROUTINE["candidates"]))},
        {"candidates": ROUTINE["candidates"][:-1]},
        {"context_window": 32769},
        {"max_context_bytes": 262145},
        {"min_remaining_percent": 15},
        {"min_remaining_percent": 15.5},
        {"min_remaining_percent": 0},
        {"allow_paid": False},
        {"prefer_paid_flash": True},
        {"require_flow": True},
        {"paid_on": []},
        {"paid_on": [Blocker.QUOTA_EXHAUSTED]},
        {"auto_compact_token_limit": 1000},
        {"candidate_reasoning_efforts": {"or-deepseek": "low"}},
    ],
    ids=str,
)
def test_every_other_setting_changes_it(other: Mapping[str, Any]) -> None:
    assert policy_fingerprint(**{**ROUTINE, **other}) != policy_fingerprint(**ROUTINE)


@pytest.mark.parametrize("field", ["provider", "kind", "credential", "model"])
def test_each_part_of_a_binding_changes_its_fingerprint(field: str) -> None:
    binding: dict[str, Any] = {"provider": "p", "kind": Tier.LOCAL, "credential": "none", "model": "m"}
    other = {**binding, field: Tier.PAID if field == "kind" else "x"}
    assert binding_fingerprint(**binding) != binding_fingerprint(**other)


def test_no_seed_of_a_hash_changes_a_fingerprint() -> None:
    """A set is hashed in another order in each process; its fingerprint is not."""
    program = """
from tidegate_server.core.fingerprint import policy_fingerprint
from tidegate_server.core.model import Blocker
print(policy_fingerprint(
    purpose="review", candidates=["a/b"], context_window=1, max_context_bytes=1,
    paid_on={b for b in (Blocker.PROVIDER_DOWN, Blocker.AUTH_FAILED, Blocker.QUOTA_EXHAUSTED)},
    candidate_reasoning_efforts={name: "low" for name in {"x", "y", "z", "a/b"}},
))
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
    assert len(found.pop().strip()) == 64
