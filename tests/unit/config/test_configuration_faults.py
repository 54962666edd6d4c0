"""One bad fixture per fault: what is said of it, exactly; and that a fault never shows a secret."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tidegate_server.config import json_schema, load, parse
from tidegate_server.config.document import read_document
from tidegate_server.errors import ConfigurationError

BAD = Path(__file__).parent / "bad"
FIXTURES = sorted(path for path in BAD.iterdir() if path.suffix in {".yaml", ".json"})

SEEN_BY_THE_SERVER_ALONE = {
    "admin-exposed", "alias-is-a-model", "alias-is-a-route", "alias-twice", "candidate-is-a-bare-model-name",
    "candidate-is-a-route", "candidate-twice", "candidate-twice-by-alias-and-name", "candidate-unknown",
    "candidate-window-too-small", "compaction-above-ninety-percent", "credential-bad-variable", "credential-is-a-key",
    "credential-is-a-key-behind-a-source", "credential-is-a-token", "credential-looks-random",
    "credential-with-a-line-break", "credential-without-label", "duplicate-key", "duration-below-a-nanosecond",
    "duration-too-long", "duration-zero", "effort-by-another-spelling", "effort-not-supported",
    "effort-of-no-candidate", "endpoint-with-password", "engine-name-is-another-model", "engine-name-twice",
    "flash-preferred-but-paying-not-allowed", "identity-certificate-without-authority",
    "identity-collector-unknown-provider", "identity-collector-without-providers", "identity-gateway-with-providers",
    "identity-name-twice", "identity-shows-nothing", "identity-shows-two", "identity-token-twice", "json-duplicate-key",
    "listen-bad-address", "listen-exposed", "listen-exposed-by-name", "listen-ipv6-without-brackets", "listen-no-port",
    "listen-port-too-big", "listen-twice", "listen-unix-relative", "merge-key", "model-name-empty", "no-candidates",
    "paid-model-not-listed", "paid-without-subscription", "profile-name-empty", "provider-name-with-slash",
    "reserve-nan", "review-prefers-flash", "review-with-local", "route-is-a-bare-model-name", "route-is-a-model",
    "route-name-with-blank", "store-without-host", "stores-without-keys", "stores-without-tracestate-keys",
    "strong-prefers-flash", "strong-with-local",
}  # fmt: skip
"""Fixtures whose shape is right: only the server's own checks refuse them, an editor with the schema does not."""


def expected(path: Path) -> list[str]:
    """The fault lines that a fixture promises: in its first comments, or (JSON has none) in a file beside it."""
    sibling = path.with_suffix(".expect")
    if sibling.exists():
        return sibling.read_text().splitlines()
    lines = path.read_text().splitlines()
    return [line.removeprefix("# expect: ") for line in lines if line.startswith("# expect: ")]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_every_fault_is_reported_under_its_path(path: Path) -> None:
    assert expected(path)
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    assert list(caught.value.faults) == expected(path)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_no_fault_shows_a_secret(path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    secrets = ("hunter2", "0123456789abcdef", "abc.def", "5f4dcc3b", "ab-ab-ab")
    assert not [secret for secret in secrets if secret in str(caught.value)]


def test_the_schema_refuses_what_a_shape_can_tell() -> None:
    validator = Draft202012Validator(json_schema())
    accepted = set()
    for path in FIXTURES:
        try:
            tree, _ = read_document(path.read_bytes(), is_json=path.suffix == ".json")
        except ConfigurationError:
            continue
        if validator.is_valid(tree):
            accepted.add(path.stem)
    assert accepted == SEEN_BY_THE_SERVER_ALONE


BASE = """
providers:
  local: {kind: local, models: {m: {contextWindow: 1000, reasoningEfforts: [low]}}}
managedRouting:
  routes:
    managed/r: {purpose: routine, candidates: [local/m], contextWindow: 1000, maxContextBytes: 1}
"""


def faults_of(text: str, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, environment)
    return list(caught.value.faults)


def test_the_limits_themselves_are_allowed() -> None:
    parse(BASE)
    parse(BASE.replace("maxContextBytes: 1}", "maxContextBytes: 9223372036854775807, autoCompactTokenLimit: 900}"))
    parse(BASE.replace("maxContextBytes: 1}", "maxContextBytes: 1, minRemainingPercent: 99.999}"))
    assert faults_of(BASE.replace("maxContextBytes: 1}", "maxContextBytes: 1, autoCompactTokenLimit: 901}"))


PAYING = """
providers:
  sub: {kind: subscription, models: {m: {contextWindow: 1000}}}
  paid: {kind: paid, models: {deepseek-v4-flash: {contextWindow: 1000}}}
managedRouting:
  routes:
    managed/r: {purpose: PURPOSE, candidates: [CANDIDATES], contextWindow: 1000, maxContextBytes: 1, MORE}
"""


@pytest.mark.parametrize(
    ("purpose", "candidates", "more"),
    [
        ("routine", "paid/deepseek-v4-flash", "allowPaid: true, preferPaidFlash: true"),
        ("routine", "paid/deepseek-v4-flash", "allowPaid: false"),
        ("routine", "sub/m, paid/deepseek-v4-flash", "allowPaid: true"),
        ("strong", "sub/m, paid/deepseek-v4-flash", "allowPaid: true"),
        ("review", "sub/m", "preferPaidFlash: false"),
    ],
)
def test_what_the_checks_of_paid_candidates_let_pass(purpose: str, candidates: str, more: str) -> None:
    parse(PAYING.replace("PURPOSE", purpose).replace("CANDIDATES", candidates).replace("MORE", more))


def test_an_alias_that_is_taken_is_the_only_fault_of_the_routes_that_name_it() -> None:
    text = PAYING.replace("m: {", "m: {alias: a, ").replace("v4-flash: {", "v4-flash: {alias: a, ")
    text = text.replace("PURPOSE", "routine").replace("CANDIDATES", "sub/m, paid/deepseek-v4-flash, a")
    assert faults_of(text.replace("MORE", "")) == [
        'providers.paid.models["deepseek-v4-flash"].alias: is taken: it is the alias of "sub/m"'
    ]


def test_a_faulty_value_hides_no_other_fault_and_makes_none() -> None:
    text = BASE.replace("contextWindow: 1000, reasoning", "contextWindow: x, reasoning")
    assert faults_of(text) == ['providers.local.models.m.contextWindow: must be a whole number, not "x"']
    text = text.replace("candidates: [local/m]", "candidates: [local/m, local/n]")
    assert [fault.partition(":")[0] for fault in faults_of(text)] == [
        "providers.local.models.m.contextWindow",
        'managedRouting.routes["managed/r"].candidates[1]',
    ]


def test_every_single_value_can_be_faulty_while_the_checks_of_the_rest_are_made() -> None:
    """Whatever value of the contract's example is spoiled, the fault of another place is reported with its own."""
    tree, _ = read_document((Path(__file__).parent / "good" / "contract.yaml").read_bytes())
    routes = tree["managedRouting"]["routes"]  # type: ignore[index]
    routes["managed/probe"] = {"purpose": "routine", "candidates": ["nobody"], "contextWindow": 1, "maxContextBytes": 1}
    probe = 'managedRouting.routes["managed/probe"].candidates[0]: no model under providers is called "nobody"'
    spoiled = 0
    for place, key in list(leaves(tree)):
        if place is routes["managed/probe"] or place is routes["managed/probe"]["candidates"]:
            continue
        kept, place[key] = place[key], {"no": ["value"]}
        found = faults_of(json.dumps(tree))
        place[key] = kept
        assert any(fault.startswith(probe) for fault in found), (key, found)
        assert len(found) > 1, (key, found)
        spoiled += 1
    assert spoiled > 80


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Walk to each single value: the container and the key or index in it."""
    for key, below in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(below, dict | list):
            yield from leaves(below)
        else:
            yield value, key
