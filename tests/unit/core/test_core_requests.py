"""The form of a request, the headers of an answer, the words of a refusal."""

import pytest
from tidegate_server.core.headers import gateway_headers
from tidegate_server.core.model import SECOND, Tier
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.core.refusals import for_people, grouped, too_long
from tidegate_server.core.requests import MAX_LIST, id_fault, request_faults


@pytest.mark.parametrize("value", ["", " ", "\t\n", "\u3000", "a\0", "a\x85b", "\x7f", "x" * 257, "漢" * 86])
def test_these_are_no_ids(value: str) -> None:
    assert id_fault(value)


@pytest.mark.parametrize("value", ["x", " x ", "e\u0301", "\u00e9", "x" * 256, "漢" * 85, "a\u200bb", "🜁"])
def test_these_are_ids_as_they_stand(value: str) -> None:
    assert id_fault(value) == ""


def test_an_id_that_may_be_left_out() -> None:
    assert id_fault("", required=False) == ""
    assert id_fault(" ", required=False)


def test_every_fault_is_told_at_once_by_its_field() -> None:
    faults = list(request_faults("", None, "\0", ("text",) * (MAX_LIST + 1)))
    assert [field for field, _ in faults] == ["worker_id", "tenant", "request_bytes", "input_modalities"]
    assert all(what for _, what in faults)
    assert [field for field, _ in request_faults("w", -1, "", ())] == ["request_bytes"]
    assert list(request_faults("w", 0, "", ("text",) * MAX_LIST)) == []


def candidate(**more: object) -> Candidate:
    parts = {"name": "alias", "provider": "p", "model": "m", "tier": Tier.LOCAL, "credential_source": "none"}
    return Candidate(**{**parts, "binding_fingerprint": "b", **more})  # type: ignore[arg-type]


def test_headers_of_a_managed_and_of_an_explicit_binding() -> None:
    plain = candidate()
    route = Route("managed/r", "routine", (plain,), "f", 1, 1)
    always = {"x-gateway-upstream": "p", "x-gateway-upstream-model": "m"}
    managed = {**always, "x-gateway-managed-route": "managed/r", "x-gateway-managed-candidate": "alias"}
    assert gateway_headers(plain, "w", route) == managed
    assert gateway_headers(plain, "w", None) == always
    affine = candidate(session_affinity=True, mapped_effort="high")
    assert gateway_headers(affine, "w", None) == {**always, "x-session-id": "w"}
    assert gateway_headers(affine, "", None) == always
    extra = {"x-gateway-managed-reasoning-effort": "high", "x-session-id": "w"}
    assert gateway_headers(affine, "w", route) == {**managed, **extra}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.1, "1 s"), (41, "41 s"), (120, "120 s"), (121, "3 min"), (7200, "120 min"), (7201, "3 h"),
     (172_800, "48 h"), (172_801, "3 d"), (5 * 86_400, "5 d")],
)  # fmt: skip
def test_lengths_of_time_are_rounded_up_for_people(seconds: float, text: str) -> None:
    assert for_people(int(seconds * SECOND)) == text


def test_digits_stand_in_groups_of_three() -> None:
    assert [grouped(n).replace("\u00a0", " ") for n in (1, 999, 12_288, 1_048_576)] == [
        "1",
        "999",
        "12 288",
        "1 048 576",
    ]


@pytest.mark.parametrize(("compaction", "word"), [(False, "budget"), (True, "recovery allowance")])
def test_a_request_that_is_too_long_says_by_how_much(compaction: bool, word: str) -> None:
    refusal = too_long(1_012_288, 1_000_000, compaction)
    assert (refusal.code, refusal.until) == ("context_length_exceeded", None)
    assert word in refusal.message
    assert refusal.suggestion.replace("\u00a0", " ") == "12 288 bytes fewer"
