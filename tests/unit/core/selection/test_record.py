"""What the log keeps of a selection: enough to compute the pick again, and no word of the query."""

import json
from decimal import Decimal

from tidegate_server.core.decision_record import session_hash
from tidegate_server.core.selection.model import Agent, AssignmentSource, Price, Stage, StageReport, Usage
from tidegate_server.core.selection.ranking import Ranked
from tidegate_server.core.selection.record import Call, SelectionFacts, repick, selection_detail, selection_tallies

A, B, C = (Agent(name, name.upper()) for name in "abc")
CALL = Call("gpt-4o", Usage(1000, 100), Price("USD", Decimal("2.50"), Decimal("10.00")), "")
REPORTS = [StageReport(Stage.SHORTLIST, 2, 3_000_000), StageReport(Stage.SELECT, 1, 9_000_000)]


def facts(call: Call | None, picked: Agent, source: AssignmentSource) -> SelectionFacts:
    ranked = [Ranked(B, 0.5), Ranked(A, 0.25), Ranked(C)]
    return SelectionFacts("ann", source, [A, B, C], ranked[:2], ranked, REPORTS, call, picked, "why")


def test_a_pick_is_computed_again_from_its_detail() -> None:
    chosen = facts(CALL, A, AssignmentSource.PIPELINE)
    assert repick(json.loads(json.dumps(selection_detail(chosen)))) == "a"
    fallen = facts(CALL._replace(cause="refused"), B, AssignmentSource.PIPELINE_FALLBACK)
    assert repick(json.loads(json.dumps(selection_detail(fallen)))) == "b"
    unasked = facts(None, B, AssignmentSource.PIPELINE_FALLBACK)
    assert repick(selection_detail(unasked)) == "b"
    named = SelectionFacts("ann", AssignmentSource.NAME_MATCH, [A, C], (), (), (), None, C)
    assert repick(selection_detail(named)) == "c"


def test_the_call_is_a_line_of_its_own() -> None:
    detail = selection_detail(facts(CALL, A, AssignmentSource.PIPELINE))
    assert detail["selection_call"] == {
        "model": "gpt-4o",
        "input_tokens": 1000,
        "output_tokens": 100,
        "cost": "0.0035",
        "currency": "USD",
        "cause": "",
    }
    lines = {(t.group, t.key, t.figure): t.value for t in selection_tallies(facts(CALL, A, AssignmentSource.PIPELINE))}
    assert lines["selection_call", "gpt-4o", "input_tokens"] == 1000
    assert lines["selection_call", "gpt-4o", "cost_usd"] == 0.0035
    assert lines["selection", "a", "fallback_used"] == 0
    assert lines["selection_stage", "shortlist", "candidates"] == 2
    assert not any(key == "a" and "cost" in figure for _, key, figure in lines)


def test_without_a_call_there_is_no_line() -> None:
    tallies = selection_tallies(facts(None, B, AssignmentSource.PIPELINE_FALLBACK))
    assert not [tally for tally in tallies if tally.group == "selection_call"]
    assert ("selection", "b", "fallback_used", 1.0) in tallies


def test_a_session_s_hash_is_keyed_and_knows_its_namespace() -> None:
    first = session_hash(b"k" * 32, "default", "thread-1")
    assert len(first) == 64
    assert first == session_hash(b"k" * 32, "default", "thread-1")
    others = [(b"l" * 32, "default", "thread-1"), (b"k" * 32, "other", "thread-1"), (b"k" * 32, "default", "thread-2")]
    assert first not in {session_hash(*other) for other in others}
    assert session_hash(b"k", "ab", "c") != session_hash(b"k", "a", "bc")
