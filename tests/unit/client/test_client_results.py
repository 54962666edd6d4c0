"""An answer forwards for OK with ADMITTED or BYPASSED alone."""

from datetime import timedelta

import grpc
import pytest
from tidegate import Admission, AdmissionRefused, TidegateError, Unavailable, may_forward
from tidegate.requests import admissions, admit_request, failed, retire_request
from tidegate.v1 import admission_pb2, types_pb2


def answer(verdict: int) -> admission_pb2.AdmitResponse:
    """Return an answer as a server of any age might send it: the number of the verdict is open."""
    return admission_pb2.AdmitResponse.FromString(bytes([8, verdict])) if verdict else admission_pb2.AdmitResponse()


@pytest.mark.parametrize(("verdict", "forwards"), [(0, False), (1, True), (2, False), (3, True), (77, False)])
def test_only_admitted_and_bypassed_forward(verdict: int, forwards: bool) -> None:
    assert may_forward(answer(verdict)) is forwards
    assert Admission(answer(verdict)).may_forward is forwards


def test_an_error_never_forwards_whatever_stands_beside_it() -> None:
    admission = Admission(answer(1), Unavailable("gone"))
    assert not admission.may_forward
    assert admission.binding is None
    with pytest.raises(Unavailable):
        admission.require()


def test_a_refusal_tells_why_and_when() -> None:
    refusal = types_pb2.Refusal(reason=types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN, message="no fresh fact for codex")
    refusal.retry_delay.FromTimedelta(timedelta(seconds=41))
    admission = Admission(admission_pb2.AdmitResponse(verdict=types_pb2.VERDICT_REFUSED, refusal=refusal))
    assert admission.retry_delay == timedelta(seconds=41)
    with pytest.raises(AdmissionRefused, match="CAPACITY_UNKNOWN: no fresh fact for codex") as caught:
        admission.require()
    assert caught.value.admission is admission


def test_a_binding_is_only_at_hand_when_it_may_be_used() -> None:
    binding = types_pb2.Binding(provider="qwen")
    for verdict, usable in ((types_pb2.VERDICT_ADMITTED, True), (types_pb2.VERDICT_REFUSED, False)):
        admission = Admission(admission_pb2.AdmitResponse(verdict=verdict, binding=binding))
        assert (admission.binding == binding) is usable


def test_a_batch_keeps_its_order_and_a_missing_result_is_an_error() -> None:
    response = admission_pb2.AdmitBatchResponse(
        results=[
            admission_pb2.AdmitBatchResult(response=answer(1)),
            admission_pb2.AdmitBatchResult(error=types_pb2.ItemError(code=14, reason="PIN_STORE_UNAVAILABLE")),
            admission_pb2.AdmitBatchResult(),
        ]
    )
    good, store, empty, missing = admissions(response, 4)
    assert good.may_forward
    assert isinstance(store.error, Unavailable)
    assert store.error.reason == "PIN_STORE_UNAVAILABLE"
    assert not any(each.may_forward for each in (store, empty, missing))


def test_what_the_wire_cannot_say_is_a_typed_error() -> None:
    with pytest.raises(TidegateError) as caught:
        admit_request("m", "w", 2**63, {})
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert not failed(caught.value).may_forward


def test_pins_are_retired_by_exactly_one_selector() -> None:
    assert retire_request("", "codex", "", "gone", False).WhichOneof("which") == "provider"
    for selectors in (("", "", ""), ("a", "b", "")):
        with pytest.raises(ValueError, match="exactly one"):
            retire_request(*selectors, "why", True)
