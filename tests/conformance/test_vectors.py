"""The client vectors leave nothing out: every reason, every status, and what is said of a reason is what §4.6 says."""

import grpc
from tidegate_server.core.model import RefusalReason
from tidegate_server.core.refusals import ANSWERS

from tests.conformance.clients import Json
from tests.conformance.test_answers import document


def test_every_reason_has_its_answer_to_the_caller() -> None:
    told: dict[str, Json] = {}
    for case in document("answers-to-the-caller")["cases"]:
        refusal = case["answers"][0].get("response", {}).get("refusal", {})
        told.setdefault(str(refusal.get("reason", "")), case["expect"]["http"])
    for reason, answer in ANSWERS.items():
        http = told[f"REFUSAL_REASON_{reason.name}"]
        assert http["status"] == answer.http_status, reason
        assert http["headers"]["x-should-retry"] == str(answer.retryable).lower(), reason
        assert http["body"]["error"]["code"] == reason.name.lower(), reason
    assert set(ANSWERS) == {reason for reason in RefusalReason if reason.value}


def test_every_status_is_no_permission() -> None:
    cases = document("fail-closed")["cases"]
    given = {case["answers"][0].get("status") for case in cases if case["expect"]["forward"] is False}
    assert {code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK} <= given


def test_names_are_used_once() -> None:
    for name in ("fail-closed", "answers-to-the-caller", "trace-headers", "hops"):
        names = [case["name"] for case in document(name)["cases"]]
        assert len(names) == len(set(names)), name
        assert all(case["why"] for case in document(name)["cases"]), name
