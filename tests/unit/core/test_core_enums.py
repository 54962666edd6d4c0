"""The core's enumerations, the protocol's and the table of answers agree, value by value."""

from enum import IntEnum
from typing import Any

import pytest
from tidegate.v1 import types_pb2
from tidegate_server.core import model
from tidegate_server.core.refusals import ANSWERS, Refusal

PAIRS: list[tuple[type[IntEnum], Any, str, str]] = [
    (model.Tier, types_pb2.Tier, "TIER", "UNSPECIFIED"),
    (model.Verdict, types_pb2.Verdict, "VERDICT", "UNSPECIFIED"),
    (model.PinState, types_pb2.PinState, "PIN_STATE", "UNSPECIFIED"),
    (model.CandidateVerdict, types_pb2.CandidateVerdict, "CANDIDATE_VERDICT", "UNSPECIFIED"),
    (model.Blocker, types_pb2.Blocker, "BLOCKER", "NONE"),
    (model.RefusalReason, types_pb2.RefusalReason, "REFUSAL_REASON", "UNSPECIFIED"),
    (model.HealthState, types_pb2.HealthState, "HEALTH_STATE", "UNKNOWN"),
    (model.AvailabilityState, types_pb2.AvailabilityState, "AVAILABILITY_STATE", "UNKNOWN"),
    (model.Freshness, types_pb2.Freshness, "FRESHNESS", "UNSPECIFIED"),
    (model.ObservationResult, types_pb2.ObservationResult, "OBSERVATION_RESULT", "UNSPECIFIED"),
]


@pytest.mark.parametrize(("ours", "wire", "prefix", "zero"), PAIRS, ids=lambda value: getattr(value, "__name__", ""))
def test_names_and_numbers_are_those_of_the_wire(ours: type[IntEnum], wire: Any, prefix: str, zero: str) -> None:
    theirs = {name.removeprefix(f"{prefix}_"): number for name, number in wire.items()}
    assert theirs.pop("UNSPECIFIED") == 0
    known = {member.name: member.value for member in ours}
    assert known.pop(zero, 0) == 0
    assert known == theirs


def test_every_enumeration_of_the_model_is_compared() -> None:
    own = {value for value in vars(model).values() if isinstance(value, type) and issubclass(value, IntEnum)}
    assert own - {IntEnum} == {ours for ours, *_ in PAIRS}


R = model.RefusalReason
ROWS = {
    (400, False): {
        R.CONTEXT_LENGTH_EXCEEDED, R.COMPACTION_REQUIRES_PIN, R.OPAQUE_STATE_REQUIRES_PIN, R.OPAQUE_STATE_MISMATCH,
        R.MODALITY_UNSUPPORTED, R.EFFORT_UNSUPPORTED, R.FLOW_REQUIRED,
    },
    (403, False): {
        R.PIN_PAID_PREREQUISITE_LIFTED, R.FLOW_UNKNOWN, R.FLOW_TIMEOUT, R.FLOW_HOP_CLOSED, R.FLOW_DEPTH_EXCEEDED,
        R.FLOW_CYCLE_DETECTED, R.FLOW_FAN_OUT_EXCEEDED, R.FLOW_TOKENS_EXHAUSTED,
    },
    (410, False): {R.PIN_MISSING, R.PIN_CORRUPT, R.PIN_RETIRED, R.PIN_POLICY_CHANGED, R.PIN_BINDING_CHANGED},
    (429, True): {R.CAPACITY_UNKNOWN, R.NO_ELIGIBLE_CANDIDATE, R.PIN_PROVIDER_UNAVAILABLE},
    (503, True): {R.FLOW_GUARD_UNAVAILABLE},
}  # fmt: skip
"""The table of §4.6 of the contract."""


def test_every_reason_has_its_row() -> None:
    assert set(ANSWERS) == set(R) == set().union(*ROWS.values())
    assert sum(map(len, ROWS.values())) == len(R)
    for row, reasons in ROWS.items():
        assert {tuple(ANSWERS[reason]) for reason in reasons} == {row}


def test_sdks_retry_only_what_is_retryable() -> None:
    retried = {408, 409, 429, *range(500, 600)}
    for reason, answer in ANSWERS.items():
        assert answer.retryable == (answer.http_status in retried), reason


@pytest.mark.parametrize("reason", R, ids=lambda reason: reason.name)
def test_the_code_is_the_reason_in_lower_snake_case(reason: model.RefusalReason) -> None:
    assert Refusal(reason, "").code == reason.name.lower()


def test_what_sdks_look_for_byte_by_byte() -> None:
    assert Refusal(R.CONTEXT_LENGTH_EXCEEDED, "").code.encode() == b"context_length_exceeded"
