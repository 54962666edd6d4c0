"""Requests from plain arguments and answers from responses: what the blocking and the asyncio client share."""

from collections.abc import Iterable

import grpc

from tidegate.errors import TidegateError, Unavailable
from tidegate.results import Admission, AdmitOptions
from tidegate.v1 import admission_pb2, operator_pb2, types_pb2

DEFAULT_TIMEOUT = 10.0
"""Seconds a call may take, its retries and the server's cold wait (2.5 s by default) included."""

PIN_PAGE = 500


def admit_request(
    model: str, worker_id: str, request_bytes: int | None, options: AdmitOptions
) -> admission_pb2.AdmitRequest:
    """Build an AdmitRequest. `request_bytes` None leaves the size out, which only a fixed model allows."""
    try:
        return admission_pb2.AdmitRequest(model=model, worker_id=worker_id, request_bytes=request_bytes, **options)
    except (TypeError, ValueError) as error:
        # A size past 63 bits, a wrong type, a lone surrogate: the wire cannot say it, so no server could have.
        raise TidegateError(f"the request cannot be encoded: {error}", code=grpc.StatusCode.INVALID_ARGUMENT) from None


def admissions(response: admission_pb2.AdmitBatchResponse, asked: int) -> list[Admission]:
    """Return one admission for each request of a batch, in order; a missing result is an error in its place."""
    results = [_admission(result) for result in response.results[:asked]]
    missing = TidegateError("the server gave no result for this request", code=grpc.StatusCode.INTERNAL)
    return results + [failed(missing)] * (asked - len(results))


def failed(error: TidegateError) -> Admission:
    """Return the admission that stands for an error: it never forwards."""
    return Admission(admission_pb2.AdmitResponse(), error)


def permitted(admission: Admission, options: AdmitOptions) -> Admission:
    """Return the admission, or, where its ADMITTED cannot be acted on, the error that stands in its place.

    A dry run stored nothing, so nothing may go out on it; an answer must say where the work goes, and hold the hop that
    was asked for, or the flow guard was never asked.
    """
    if not admission.may_forward:
        return admission
    response = admission.response
    if options.get("dry_run"):
        flaw = "a dry run is no permission to forward"
    elif not (response.binding.provider and response.binding.model):
        flaw = "the answer does not say where to forward"
    elif options.get("hop") is not None and not response.hop.hop_id:
        flaw = "the answer does not hold the hop that was asked for"
    else:
        return admission
    return Admission(response, TidegateError(flaw, code=grpc.StatusCode.FAILED_PRECONDITION))


def pin_request(
    model: str, worker_id: str, mode: types_pb2.PinMode.ValueType, tenant: str, reasoning_effort: str = ""
) -> admission_pb2.PinRequest:
    """Build a PinRequest."""
    return admission_pb2.PinRequest(
        model=model, worker_id=worker_id, mode=mode, tenant=tenant, reasoning_effort=reasoning_effort
    )


def retire_request(
    pin_id: str, provider: str, model: str, reason: str, dry_run: bool
) -> operator_pb2.RetirePinsRequest:
    """Build a RetirePinsRequest; exactly one of `pin_id`, `provider` and `model` says which pins (ValueError)."""
    if sum(map(bool, (pin_id, provider, model))) != 1:
        raise ValueError("name exactly one of pin_id, provider and model")
    request = operator_pb2.RetirePinsRequest(reason=reason, dry_run=dry_run)
    for name, value in (("pin_id", pin_id), ("provider", provider), ("model", model)):
        if value:
            setattr(request, name, value)
    return request


def report_request(
    collector_id: str, observations: Iterable[types_pb2.Observation], retract: admission_pb2.Retract | None
) -> admission_pb2.ReportCapacityRequest:
    """Build a ReportCapacityRequest."""
    return admission_pb2.ReportCapacityRequest(collector_id=collector_id, observations=observations, retract=retract)


def _admission(result: admission_pb2.AdmitBatchResult) -> Admission:
    if result.WhichOneof("result") == "response":
        return Admission(result.response)
    error = result.error
    code = next((code for code in grpc.StatusCode if code.value[0] == error.code), grpc.StatusCode.UNKNOWN)
    kind = Unavailable if code is grpc.StatusCode.UNAVAILABLE else TidegateError
    return failed(kind(error.message or "no result", code=code, reason=error.reason))
