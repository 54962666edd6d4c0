"""The decision vectors are what their README says: every message parses, every name is one, every reason has a case."""

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from tidegate.v1 import admission_pb2, operator_pb2, types_pb2

from tests.support import vectors

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
DOCUMENTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in vectors.files()}
CASES = [case for path in vectors.files() for case in vectors.cases(path)]
DIRECTIVES = {"absent", "present", "status", "fields"}

DOCUMENT_KEYS = {"title", "contract", "config", "cases"}
CASE_KEYS = {"name", "why", "steps"}
STEP_KEYS = {
    "report": {"collector", "expectResults"},
    "retract": {"collector"},
    "admit": {"expect"},
    "pin": {"expect"},
    "reload": set[str](),
    "retire": set[str](),
    "clear": set[str](),
    "corruptPin": set[str](),
}
NEEDS = {"reload", "retire", "clear", "corruptPin"}
REASONS_WITHOUT_FLOWS = range(1, 17)


def verb(step: Any) -> str:
    """Which step it is."""
    names = [name for name in STEP_KEYS if name in step]
    assert len(names) == 1, step
    return names[0]


def parse(value: Any, message: Message) -> Message:
    """Read proto3 JSON as a stranger's library would: an unknown field or word is a fault."""
    return json_format.ParseDict(vectors.resolved(value, NOW), message)


@pytest.mark.parametrize(("name", "document"), DOCUMENTS.items(), ids=list(DOCUMENTS))
def test_a_file_has_the_documented_keys_and_no_name_twice(name: str, document: Any) -> None:
    assert set(document) == DOCUMENT_KEYS, name
    assert document["contract"].startswith("§")
    assert set(document["config"]) <= {"coldWait", "freshness", "providers", "managedRouting"}
    names = [case["name"] for case in document["cases"]]
    assert len(names) == len(set(names))
    for case in document["cases"]:
        assert set(case) - {"needs"} == CASE_KEYS, case["name"]
        assert case["why"].endswith("."), case["name"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_message_parses(case: vectors.Case) -> None:
    for step in case.steps:
        name = verb(step)
        assert set(step) <= {name} | STEP_KEYS[name]
        if name == "report":
            batch = {"observations": step["report"]}
            parse(batch, admission_pb2.ReportCapacityRequest())
            assert "expectResults" not in step or len(step["expectResults"]) == len(step["report"])
            for result in step.get("expectResults", ()):
                parse(result, admission_pb2.ItemResult())
        elif name == "retract":
            parse(step["retract"], admission_pb2.Retract())
        elif name == "retire":
            parse(step["retire"], operator_pb2.RetirePinsRequest())
        elif name == "clear":
            parse(step["clear"], operator_pb2.ClearBlockersRequest())
        elif name == "admit":
            parse(step["admit"], admission_pb2.AdmitRequest())
            check_expectation(step["expect"], admission_pb2.AdmitResponse())
        elif name == "pin":
            parse(step["pin"], admission_pb2.PinRequest())
            check_expectation(step["expect"], admission_pb2.PinResponse())


def check_expectation(expected: Any, response: Message) -> None:
    """A status with its fields, or a part of the response; each path that must (not) be there exists in the message."""
    if "status" in expected:
        assert set(expected) <= {"status", "fields"}
        assert expected["status"] in {"INVALID_ARGUMENT", "NOT_FOUND"}
        return
    parse(without_ranges({key: value for key, value in expected.items() if key not in DIRECTIVES}), response)
    for path in (*expected.get("absent", ()), *expected.get("present", ())):
        head, *rest = path.split(".")
        assert head in {field.json_name for field in response.DESCRIPTOR.fields}, path
        if rest and head != "headers":
            inner = next(field.message_type for field in response.DESCRIPTOR.fields if field.json_name == head)
            assert inner is not None, path
            assert rest[0] in {field.json_name for field in inner.fields}, path


def without_ranges(value: Any) -> Any:
    """Put the upper limit in the place of a range, so that the message parses."""
    if isinstance(value, list):
        return [without_ranges(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "atMost" in value:
        return value["atMost"]
    return {key: without_ranges(item) for key, item in value.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_needs_name_the_steps_that_not_every_runner_can_do(case: vectors.Case) -> None:
    assert case.needs == {verb(step) for step in case.steps} & NEEDS


def test_no_two_cases_of_a_file_share_a_worker() -> None:
    """So that one running server may serve all cases of a file, its pins included."""
    owners: dict[tuple[str, str], str] = {}
    for case in CASES:
        for step in case.steps:
            worker = (step.get("admit") or step.get("pin") or {}).get("workerId")
            if worker and "status" not in step.get("expect", {}):
                assert owners.setdefault((case.file, worker), case.name) == case.name, str(case)


def test_every_refusal_reason_without_flows_has_a_case_with_its_whole_row() -> None:
    whole = {"code", "httpStatus", "retryable"}
    seen = {
        step["expect"]["refusal"]["reason"]
        for case in CASES
        for step in case.steps
        if whole <= set(step.get("expect", {}).get("refusal", {}))
    }
    assert seen == {
        value.name for value in types_pb2.RefusalReason.DESCRIPTOR.values if value.number in REASONS_WITHOUT_FLOWS
    }


def test_relative_times_become_absolute_under_their_own_keys_only() -> None:
    value = {"resetTime": "+3h", "list": [{"untilTime": "-2m", "observeTime": "2026-01-01T00:00:00Z", "code": "+1s"}]}
    assert vectors.resolved(value, NOW) == {
        "resetTime": "2026-07-01T15:00:00Z",
        "list": [{"untilTime": "2026-07-01T11:58:00Z", "observeTime": "2026-01-01T00:00:00Z", "code": "+1s"}],
    }


@pytest.mark.parametrize(
    ("expected", "actual", "fault"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, None),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "case.a.b: expected 1, got 2"),
        ({"a": {"b": 1}}, {}, "case.a.b: expected 1, got None"),
        ({"a": 1}, {"a": "1"}, None),
        ({"a": False}, {}, None),
        ({"a": True}, {}, "case.a: expected True, got None"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 3}]}, None),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1}, {}]}, "has not 1 items"),
        ({"a": []}, {}, None),
        ({"a": {"atLeast": "28s", "atMost": "30s"}}, {"a": "29.5s"}, None),
        ({"a": {"atLeast": "28s", "atMost": "30s"}}, {"a": "30.1s"}, "case.a: 30.1s is not within"),
        ({"a": {"atMost": "30s"}}, {}, "case.a: is missing"),
        ({"absent": ["a.b"]}, {"a": {"b": ""}}, None),
        ({"absent": ["a.b"]}, {"a": {"b": "x"}}, "a.b should be absent"),
        ({"present": ["a.b"]}, {"a": {"b": "x"}}, None),
        ({"present": ["a.b"]}, {"a": {}}, "a.b should be present"),
    ],
)
def test_what_an_expectation_means(expected: Any, actual: Any, fault: str | None) -> None:
    if fault is None:
        vectors.compare(actual, expected, "case")
    else:
        with pytest.raises(AssertionError, match=re.escape(fault)):
            vectors.compare(actual, expected, "case")
