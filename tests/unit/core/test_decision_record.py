"""What a logged decision counts for, and what the writer of details keeps."""

import json

import pytest
from tidegate_server.core import admission_detail
from tidegate_server.core.admission_detail import DetailWriter, recompute
from tidegate_server.core.decide import decide
from tidegate_server.core.decision_record import DecisionRecord, Tally, tallies
from tidegate_server.core.facts import FactTable, fact_key
from tidegate_server.core.model import Fact, Health, HealthState, Request, Tier
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.core.selection.model import Usage

ADMISSION = DecisionRecord("1", 0, "admission", "managed/routine", "REFUSED", "CAPACITY_UNKNOWN")


def test_an_admission_counts_for_its_route_by_outcome_and_reason() -> None:
    assert tallies(ADMISSION) == (
        Tally("admission", "managed/routine", "decisions"),
        Tally("admission", "managed/routine", "refused"),
        Tally("admission", "managed/routine", "capacity_unknown"),
    )


def test_a_refused_hop_counts_for_the_limit_that_it_hit() -> None:
    hop = ADMISSION._replace(kind="hop", subject="flow-1", reason="FLOW_CYCLE_DETECTED")
    assert [tally[:3] for tally in tallies(hop)] == [
        ("flow", "FLOW_CYCLE_DETECTED", "decisions"),
        ("flow", "FLOW_CYCLE_DETECTED", "refused"),
    ]


def test_a_selection_brings_its_own_lines_and_its_causes_are_no_figure() -> None:
    line = Tally("selection_call", "gpt-4o", "calls")
    selection = ADMISSION._replace(kind="selection", subject="billing", outcome="", reason="SELECT: x", tallies=(line,))
    assert [tally[:3] for tally in tallies(selection)] == [
        ("selection", "billing", "decisions"),
        ("selection", "billing", "unknown"),
        ("selection_call", "gpt-4o", "calls"),
    ]


def test_usage_is_the_sum_of_both_ways() -> None:
    assert Usage(800, 40).tokens == 840


def test_the_writer_of_details_keeps_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_detail.DetailWriter, "_KEPT", 2)
    writer = DetailWriter()
    for number in range(7):
        candidate = Candidate("qwen/m", "qwen", "m", Tier.LOCAL, "none", "b")
        route = Route(f"route-{number}", "routine", (candidate,), "f", 1, 1)
        table = FactTable()
        health = Health(HealthState.HEALTHY, number)
        table.put(Fact(fact_key("qwen", "m", health), health, 0, 10))
        request = Request("w", 1, provider_state="unknown" * (number % 2))
        decision = decide(route, request, None, table.groups, 5)
        text = writer.text(route, request, None, decision)
        assert recompute(json.loads(text)) == decision
        assert len(writer._routes) <= 2
        assert len(writer._facts) <= 2
        assert len(writer._texts) <= 2
