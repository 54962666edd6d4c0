"""Answers to Admit and AdmitBatch as bytes: what every worker of a binding is told is built and serialized once.

On the wire a message is the concatenation of its fields, in any order, a map entry by entry. So the usual answer is the
binding's ready part, and behind it the two things that are the call's own: the decision's id, and the worker's where
the provider has session affinity. That takes a fifth of the time that `mapping.admit_response` does, which all other
answers are made by. A message inside is written once and whole: readers should merge the pieces of one, and not all do
(protobuf.js takes the last).
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor
from tidegate.v1 import admission_pb2 as wire
from tidegate.v1 import types_pb2

from tidegate_server.core.headers import SESSION
from tidegate_server.core.model import PinState, Verdict
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.rpc.mapping import admit_response
from tidegate_server.usecases.admit import Admission

_Key: TypeAlias = tuple[int, int, PinState, str]

_KEPT = 4096
"""Parts that are kept: one per binding, pin state and effort, as long as a policy is in force."""


class _Kept(NamedTuple):
    """The parts without the worker, and the objects whose ids are their key: kept, so that the ids stay theirs."""

    common: bytes
    binding: bytes
    route: Route
    candidate: Candidate


class AdmitAnswers:
    """Makes the answers; keeps the parts that it made."""

    def __init__(self) -> None:
        self._kept: dict[_Key, _Kept] = {}

    def answer(self, admission: Admission) -> bytes:
        """A serialized AdmitResponse."""
        decision, route = admission.decision, admission.route
        candidate = decision.candidate
        is_usual = decision.verdict is Verdict.ADMITTED and admission.hop is None and not decision.evidence
        if not is_usual or admission.ask.explain or route is None or candidate is None:
            return admit_response(admission).SerializeToString()
        key = (id(route), id(candidate), decision.pin_state, decision.effort)
        kept = self._kept.get(key) or self._keep(key, admission, route, candidate)
        own = _DECISION_ID + _sized(admission.decision_id.encode())
        if not candidate.session_affinity:
            return kept.common + _BINDING + _sized(kept.binding) + own
        worker = _sized(admission.ask.worker_id.encode())
        binding = _BINDING + _sized(kept.binding + _SESSION_KEY + worker)
        return kept.common + binding + own + _HEADERS + _sized(_SESSION_HEADER + worker)

    def _keep(self, key: _Key, admission: Admission, route: Route, candidate: Candidate) -> "_Kept":
        response = admit_response(admission._replace(decision_id=""))
        response.binding.ClearField("session_affinity_key")
        binding = response.binding.SerializeToString()
        response.ClearField("binding")
        response.headers.pop(SESSION, None)
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        kept = self._kept[key] = _Kept(response.SerializeToString(), binding, route, candidate)
        return kept


def batch_answer(results: Iterable[bytes | types_pb2.ItemError]) -> bytes:
    """A serialized AdmitBatchResponse of serialized AdmitResponses, and of errors."""
    return b"".join(
        _RESULTS
        + _sized(
            _RESPONSE + _sized(result) if isinstance(result, bytes) else _ERROR + _sized(result.SerializeToString())
        )
        for result in results
    )


def _tag(message: Descriptor, field: str) -> bytes:
    """What stands before a field that has a length."""
    return _varint(message.fields_by_name[field].number << 3 | 2)


def _sized(data: bytes) -> bytes:
    """The bytes behind their length."""
    size = len(data)
    return (bytes((size,)) if size < 128 else _varint(size)) + data


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_ADMIT = wire.AdmitResponse.DESCRIPTOR
_DECISION_ID, _BINDING, _HEADERS = _tag(_ADMIT, "decision_id"), _tag(_ADMIT, "binding"), _tag(_ADMIT, "headers")
_SESSION_KEY = _tag(types_pb2.Binding.DESCRIPTOR, "session_affinity_key")
_ENTRY = wire.AdmitResponse.HeadersEntry.DESCRIPTOR
_SESSION_HEADER = _tag(_ENTRY, "key") + _sized(SESSION.encode()) + _tag(_ENTRY, "value")
_RESULTS = _tag(wire.AdmitBatchResponse.DESCRIPTOR, "results")
_RESPONSE = _tag(wire.AdmitBatchResult.DESCRIPTOR, "response")
_ERROR = _tag(wire.AdmitBatchResult.DESCRIPTOR, "error")
