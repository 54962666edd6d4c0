"""More answers than the samples have, as data, and what no answer may do to a parser."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tidegate_collectors.account import Account
from tidegate_collectors.facts import Health, Kind, Quota, Source
from tidegate_collectors.payload import Response
from tidegate_collectors.presets import PRESETS, find
from tidegate_collectors.times import epoch_ms, epoch_s, go_duration, period_utc, rfc3339, window_name
from tidegate_collectors.vocabulary import differences, record

MORE = yaml.safe_load((Path(__file__).parents[2] / "vectors/signals/more.yaml").read_text())
NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize("case", MORE, ids=lambda case: case["case"])
def test_an_answer_gives_exactly_its_facts(case: dict[str, Any]) -> None:
    body = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])
    response = Response(body.encode(), NOW, case.get("status", 200), case.get("headers", {}))
    reading = find(case["preset"]).parser()(response, Source(provider="acc", **case.get("source", {})))
    assert differences(case["facts"], [record(fact) for fact in reading.facts]) == []
    assert bool(reading.error) is case.get("error", False)


NAMES = [
    "rate_limit",
    "primary_window",
    "used_percent",
    "limit_window_seconds",
    "reset_at",
    "five_hour",
    "utilization",
    "resets_at",
    "limits",
    "percent",
    "kind",
    "data",
    "limit",
    "limit_remaining",
    "balance_infos",
    "currency",
    "total_balance",
    "models",
    "size",
    "size_vram",
    "name",
    "expires_at",
    "result",
    "quota_snapshots",
    "entitlement",
    "percent_remaining",
    "error",
    "status",
    "rateLimits",
    "rate_limits",
    "extra_usage",
    "is_enabled",
    "metadata",
    "monthly_limit",
    "used_credits",
    "credits",
]

BODIES = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(NAMES),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(lambda document: json.dumps(document).encode()),
)


@pytest.mark.parametrize("name", PRESETS)
@given(body=BODIES, status=st.sampled_from([200, 400, 401, 402, 403, 404, 429, 500, 501, 503, 529]))
def test_no_answer_makes_a_parser_raise_or_tell_what_is_no_number(name: str, body: bytes, status: int) -> None:
    reading = find(name).parser()(Response(body, NOW, status), Source(provider="acc"))
    for fact in reading.facts:
        if isinstance(fact, Quota):
            assert fact.unlimited or (fact.remaining is not None and 0 <= fact.remaining <= 100)
            assert fact.resets_at is None or fact.resets_at > NOW
        if isinstance(fact, Health) and fact.kv_usage is not None:
            assert 0 <= fact.kv_usage <= 1
        record(fact)


PERCENT = [(0, 100.0), (0.5, 99.5), (0.56, 99.44), (1, 99.0), (1.01, 98.99), (99.9, 0.1), (100, 0.0), (100.4, 0.0)]


@pytest.mark.parametrize(("used", "left"), PERCENT)
def test_a_percentage_is_never_guessed_from_its_size(used: float, left: float) -> None:
    document = {"five_hour": {"utilization": used, "resets_at": None}}
    (fact, *_) = find("claude-usage").parser()(Response(json.dumps(document).encode(), NOW), Source(provider="a")).facts
    assert isinstance(fact, Quota)
    assert fact.remaining == pytest.approx(left)


@pytest.mark.parametrize(
    "reset", [1792510200000, 0, -5, 10**15, 10**400, NOW.timestamp() + 3 * 365 * 86_400, "soon", "NaN"]
)
def test_a_reset_that_cannot_be_is_unknown_and_the_window_stands(reset: object) -> None:
    limits = {"primary": {"usedPercent": 100, "windowDurationMins": 300, "resetsAt": reset}}
    body = {"result": {"rateLimits": {**limits, "rateLimitReachedType": "rate_limit_reached"}}}
    quota, blocker = find("codex").parser()(Response(json.dumps(body).encode(), NOW), Source(provider="a")).facts
    assert record(quota)["remaining_pct"] == 0
    assert record(quota)["resets_at"] is None
    assert record(blocker)["until"] is None


def test_a_reset_on_a_clock_that_runs_ahead_is_brought_onto_ours() -> None:
    headers = {"date": "Tue, 20 Oct 2026 12:10:00 GMT"}
    response = Response(b"", NOW, 200, headers)
    assert response.skew == 600
    assert response.absolute(NOW + timedelta(minutes=15)) == NOW + timedelta(minutes=5)
    assert Response(b"", NOW, 200, {"date": "Tue, 20 Oct 2026 12:00:04 GMT"}).skew is None
    assert Response(
        b"", NOW, 200, {"retry-after": "Tue, 20 Oct 2026 12:10:30 GMT", **headers}
    ).retry_after == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (18000, "5h"),
        (17940, "5h"),
        (604800, "7d"),
        (604740, "7d"),
        (86400, "1d"),
        (2592000, "30d"),
        (5400, "90m"),
        (90, "90s"),
        (0, None),
        (-5, None),
        (10**12, None),
    ],
)
def test_a_window_is_named_by_its_length(seconds: int, name: str | None) -> None:
    assert window_name(seconds) == name


def test_times_are_read_as_declared() -> None:
    assert go_duration("6m0s") == timedelta(minutes=6)
    assert go_duration("1h2m3.5s") == timedelta(hours=1, minutes=2, seconds=3.5)
    assert go_duration("12ms") == timedelta(milliseconds=12)
    assert go_duration("4hr 59min") is None
    assert epoch_ms(1792540800000) == epoch_s(1792540800) == datetime(2026, 10, 21, tzinfo=UTC)
    assert epoch_s(1792540800000) is None
    assert rfc3339("2026-10-20T05:04:07.93355-07:00") == datetime(2026, 10, 20, 12, 4, 7, tzinfo=UTC)
    assert rfc3339("2026-10-20T12:00:00") is None
    assert rfc3339("11am (Europe/Vienna)") is None
    sunday = datetime(2026, 10, 25, 23, 59, tzinfo=UTC)
    assert period_utc("weekly", sunday) == datetime(2026, 10, 26, tzinfo=UTC)
    assert period_utc("monthly", datetime(2026, 12, 31, tzinfo=UTC)) == datetime(2027, 1, 1, tzinfo=UTC)
    assert period_utc("yearly", sunday) is None


def test_all_windows_bind_and_the_last_to_open_decides() -> None:
    account = Account(Response(b"", NOW), Source(provider="a"))
    account.quota("5h", used=100, resets_at=NOW + timedelta(hours=3))
    account.quota("7d", used=100, resets_at=NOW + timedelta(days=5))
    account.block_exhausted()
    told = record(account.facts[-1])
    assert (told["kind"], told["window"], told["until"]) == (Kind.QUOTA_EXHAUSTED, "7d", "2026-10-25T12:00:00Z")
