"""Answers as a gateway reads them: thin, typed views of the messages, with "do not forward" built in.

`response` is always at hand for what a view does not name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict

from tidegate.errors import AdmissionRefused, TidegateError
from tidegate.v1 import admission_pb2, flow_pb2, types_pb2

_FORWARD = frozenset({types_pb2.VERDICT_ADMITTED, types_pb2.VERDICT_BYPASSED})


class AdmitOptions(TypedDict, total=False):
    """What an admission may say besides model, worker and size; the names and meanings are those of AdmitRequest."""

    reasoning_effort: str
    compaction: bool
    provider_state: str
    input_modalities: Iterable[str]
    hop: flow_pb2.EnterHopRequest
    flow: flow_pb2.FlowCheck
    dry_run: bool
    explain: bool
    request_id: str
    tenant: str
    require_pin: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one admission, or the error that stands in its place (in a batch, and from `forwardable`)."""

    response: admission_pb2.AdmitResponse
    error: TidegateError | None = None

    @property
    def may_forward(self) -> bool:
        """True for an answer of ADMITTED or BYPASSED alone; for an error, an unset or an unknown verdict False."""
        return self.error is None and self.response.verdict in _FORWARD

    @property
    def binding(self) -> types_pb2.Binding | None:
        """Where the work goes; None unless it may be forwarded."""
        return self.response.binding if self.may_forward and self.response.HasField("binding") else None

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers to put on the response and on the upstream request (§4.6 of the contract)."""
        return dict(self.response.headers)

    @property
    def refusal(self) -> types_pb2.Refusal | None:
        """The policy's "no"; None when admitted, and when there was no decision at all (see `error`)."""
        return self.response.refusal if self.response.HasField("refusal") else None

    @property
    def hop(self) -> flow_pb2.HopGrant | None:
        """The grant of the hop that was entered together with the admission; pass its trace context on."""
        return self.response.hop if self.response.HasField("hop") else None

    @property
    def pinned(self) -> bool:
        """Whether the worker had its binding before this call."""
        return self.response.pin_state == types_pb2.PIN_STATE_EXISTING

    @property
    def retry_delay(self) -> timedelta | None:
        """When asking again may help; None when nothing known will change."""
        if self.error is not None:
            return self.error.retry_delay
        refusal = self.refusal
        return refusal.retry_delay.ToTimedelta() if refusal and refusal.HasField("retry_delay") else None

    @property
    def message(self) -> str:
        """One sentence: why the work must not be forwarded, or where it goes."""
        if self.error is not None:
            return str(self.error)
        if self.may_forward:
            return f"forward to {self.response.binding.candidate}"
        if self.refusal is None:
            return f"verdict {self.response.verdict} is no permission to forward"
        reason = _name(types_pb2.RefusalReason, self.refusal.reason, "REFUSAL_REASON_")
        return f"{reason}: {self.refusal.message}" if self.refusal.message else reason

    def require(self) -> types_pb2.Binding:
        """Return the binding, or raise: the error that stands for the answer, else AdmissionRefused."""
        if self.error is not None:
            raise self.error
        if not self.may_forward:
            raise AdmissionRefused(self)
        return self.response.binding


@dataclass(frozen=True, slots=True)
class PinAnswer:
    """The answer to a look-up or establishment of a pin (§4.7)."""

    response: admission_pb2.PinResponse

    @property
    def record(self) -> types_pb2.PinRecord | None:
        """The stored pin; a refusal carries it too, where it is readable."""
        return self.response.pin if self.response.HasField("pin") else None

    @property
    def refusal(self) -> types_pb2.Refusal | None:
        """Why there is no usable pin; None when there is."""
        return self.response.refusal if self.response.HasField("refusal") else None

    @property
    def usable(self) -> bool:
        """True when the worker has a pin that holds under the present configuration."""
        return self.response.verdict == types_pb2.VERDICT_ADMITTED


def may_forward(response: admission_pb2.AdmitResponse) -> bool:
    """Tell, for a bare response of a call that ended with status OK, whether its work may be forwarded."""
    return Admission(response).may_forward


def _name(enum: object, value: int, prefix: str) -> str:
    """Return the name of an enum's value, or its number where this client is older than the server."""
    try:
        return str(enum.Name(value)).removeprefix(prefix)  # type: ignore[attr-defined]
    except ValueError:
        return str(value)
