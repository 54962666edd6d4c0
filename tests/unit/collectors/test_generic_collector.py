"""The mapping language: what it can say, and that a fault is named with its path when the file is loaded."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tidegate_collectors.config import Config, ConfigError, check
from tidegate_collectors.facts import Kind, Quota, Reading, Source
from tidegate_collectors.generic.evaluate import GenericParser
from tidegate_collectors.generic.paths import parse
from tidegate_collectors.payload import Response
from tidegate_collectors.sampling import SERIES_STEP, as_expected, forerunners, read_sample
from tidegate_collectors.vocabulary import differences, record

VECTORS = Path(__file__).parents[2] / "vectors/signals"
EXPECTED = json.loads((VECTORS / "expected.json").read_text())
FACTS = {case["sample"]: case["facts"] for case in EXPECTED["samples"]}
MAPPINGS = yaml.safe_load((VECTORS / "generic.yaml").read_text())
NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)


def loaded(collector: dict[str, Any]) -> Config:
    observer = {"observer": {"token_file": "observer.token"}} if "observe" in collector else {}
    return check({"collectors": [collector], **observer})


def parsed(
    emit: list[dict[str, Any]],
    document: object,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Reading:
    """Return what a mapping makes of a document that is polled (or, with `observe`, handed over)."""
    where = {} if "observe" in more else {"http": {"url": "http://127.0.0.1:1/x"}}
    entry = loaded({"id": "a", "emit": emit, **where, **more}).collectors[0]
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return GenericParser(entry)(Response(body, NOW, 200, headers or {}), entry.source)


@pytest.mark.parametrize(
    ("sample", "collector"),
    [pytest.param(sample, case["collector"], id=sample) for case in MAPPINGS for sample in case["samples"]],
)
def test_a_mapping_gives_the_facts_of_the_preset(sample: str, collector: dict[str, Any]) -> None:
    entry = loaded(collector).collectors[0]
    file = VECTORS / "samples" / sample
    now = NOW + len(forerunners(file)) * SERIES_STEP
    reading = read_sample(GenericParser(entry), file, as_expected(Source(provider=""), FACTS[sample]), now)
    assert differences(FACTS[sample], [record(fact) for fact in reading.facts]) == []


QUOTA: dict[str, Any] = {"window": "5h", "value": {"path": "$.used", "unit": "percent", "sense": "used"}}


def test_the_same_number_means_what_its_unit_and_sense_declare() -> None:
    def left(unit: str, sense: str, value: object) -> object:
        rule = {**QUOTA, "value": {"path": "$.used", "unit": unit, "sense": sense}}
        (fact,) = parsed([{"quota": rule}], {"used": value}).facts
        assert isinstance(fact, Quota)
        return fact.remaining

    assert left("percent", "used", 1) == 99
    assert left("fraction", "used", 1) == 0
    assert left("percent", "remaining", "1") == 1
    assert left("fraction", "remaining", 0.25) == 25
    assert left("percent", "used", 100.4) == 0
    assert left("percent", "remaining", -15) == 0


@pytest.mark.parametrize("body", [b'{"used": NaN}', b'{"used": 1e999}', b'{"used": null}', b'{"used": true}', b"{}"])
def test_what_is_no_number_is_unknown_and_never_zero(body: bytes) -> None:
    reading = parsed([{"quota": QUOTA}], body)
    assert reading.facts == ()
    assert reading.error


@pytest.mark.parametrize("body", [b"", b"<html>", b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70, b"1" * 5000])
def test_what_is_no_json_within_the_limits_is_an_error(body: bytes) -> None:
    assert parsed([{"quota": QUOTA}], body).error


def test_a_guard_that_is_not_met_is_an_error_and_no_fact() -> None:
    reading = parsed([{"quota": QUOTA}], {"used": 5, "ok": None}, require=["$.ok"])
    assert reading.error == "$.ok is missing, so this is no answer"
    assert reading.facts == ()


def test_a_status_is_a_blocker_or_a_reason_to_wait() -> None:
    rules = {
        401: {"blocker": "auth_failed"},
        429: {"backoff": "retry_after", "min": "60s"},
        503: {"blocker": "overloaded"},
    }
    (auth,) = parsed_status(rules, 401).facts
    assert record(auth)["kind"] == Kind.AUTH_FAILED
    assert record(auth)["until"] is None
    assert parsed_status(rules, 429, {"retry-after": "0"}).retry_after == 60
    assert parsed_status(rules, 429, {"retry-after": "90"}).retry_after == 90
    (busy,) = parsed_status(rules, 503).facts
    assert record(busy)["until"] == "2026-10-20T12:00:30Z"
    assert parsed_status(rules, 500).error == "the endpoint answered HTTP 500"


def parsed_status(rules: dict[int, Any], status: int, headers: dict[str, str] | None = None) -> Reading:
    entry = loaded({"id": "a", "http": {"url": "http://127.0.0.1:1/"}, "status": rules, "emit": [{"quota": QUOTA}]})
    return GenericParser(entry.collectors[0])(Response(b"{}", NOW, status, headers or {}), Source(provider="a"))


def test_the_first_reset_that_can_be_read_is_taken() -> None:
    rule = {
        **QUOTA,
        "resets_at": [{"path": "$.in", "time": "seconds_until"}, {"path": "$.at", "time": "rfc3339"}],
    }
    (relative,) = parsed([{"quota": rule}], {"used": 5, "in": 60, "at": "2026-10-21T00:00:00Z"}).facts
    (absolute,) = parsed([{"quota": rule}], {"used": 5, "in": "soon", "at": "2026-10-21T00:00:00Z"}).facts
    assert record(relative)["resets_at"] == "2026-10-20T12:01:00Z"
    assert record(absolute)["resets_at"] == "2026-10-21T00:00:00Z"


def test_minor_units_are_scaled_exactly() -> None:
    rule = {"currency": "USD", "amount": {"path": "$.cents", "scale": "10^-2"}}
    (fact,) = parsed([{"balance": rule}], {"cents": 3006}).facts
    assert record(fact)["amount"] == "30.06"


def test_a_live_answer_is_read_by_its_headers_whatever_its_body_is() -> None:
    rule = {
        "each_header": "x-(?P<w>[a-z]+)-left",
        "window": {"const": "${w}"},
        "value": {"from": "header", "unit": "percent", "sense": "remaining"},
    }
    reading = parsed([{"quota": rule}], b"data: x", headers={"x-day-left": "7"}, observe={"host": "h"})
    assert [record(fact)["window"] for fact in reading.facts] == ["day"]
    assert not reading.complete


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("$", [{"a": [{"b": 1}, {"b": 2}], "c-d": None}]),
        ("$.a[*].b", [1, 2]),
        ("$.a[1].b", [2]),
        ("$.a[9]", []),
        ("$.c-d", [None]),
        ('$["c-d"]', [None]),
        ("$.x.y", []),
    ],
)
def test_paths(text: str, values: list[object]) -> None:
    assert parse(text).all({"a": [{"b": 1}, {"b": 2}], "c-d": None}) == values


@pytest.mark.parametrize("text", ["", "a", "$..a", "$.a[?(@.b)]", "$.a[-1]", "$.a[0:2]", "$a", "$.a ", "$[*", 7, None])
def test_a_path_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"path|character"):
        parse(text)


@pytest.mark.parametrize("case", yaml.safe_load((VECTORS / "faults.yaml").read_text()), ids=lambda case: case["fault"])
def test_a_fault_is_named_with_its_path(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded({"id": "a", **case["collector"]})
    assert [fault.split(": ")[0] for fault in caught.value.faults] == [case["fault"]]


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check({"colectors": [], "collectors": [{"id": "a", "everry": 1}, {"preset": "vllm", "every": "fast"}]})
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "collectors[0].everry",
        "collectors[1].provider",
        "collectors[1].every",
        "colectors",
    ]


def test_two_series_without_a_reduction_are_an_error() -> None:
    page = b'm{a="1"} 1\nm{a="2"} 2\n'
    rule: dict[str, Any] = {"running": {"metric": "m"}}
    entry = {"id": "a", "prometheus": {"url": "http://127.0.0.1:1/"}}

    def read(**reduce: Any) -> Reading:
        emit = [{"health": {"running": {**rule["running"], **reduce}}}]
        return GenericParser(loaded({**entry, "emit": emit}).collectors[0])(Response(page, NOW), Source(provider="a"))

    assert read().error == "m: 2 series and no reduction over a"
    assert [record(fact)["running"] for fact in read(sum_over=["a"]).facts] == [3]
    assert [record(fact)["running"] for fact in read(max_over=["a"]).facts] == [2]
    assert [record(fact)["running"] for fact in read(match={"a": "1"}).facts] == [1]
    assert [record(fact)["running"] for fact in read(match={"a": "/[2-9]/"}).facts] == [2]


def test_a_reset_that_has_passed_makes_the_window_unknown() -> None:
    rule = {**QUOTA, "resets_at": {"path": "$.at", "time": "epoch_s"}}
    past = (NOW - timedelta(seconds=1)).timestamp()
    reading = parsed([{"quota": rule}], {"used": 5, "at": past})
    assert reading.facts == ()
    assert reading.named == {("5h", "")}
