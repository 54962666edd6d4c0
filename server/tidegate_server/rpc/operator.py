"""OperatorService: map, call, map back."""

import logging
from typing import NamedTuple

import grpc
from tidegate.v1 import operator_pb2 as wire
from tidegate.v1 import operator_pb2_grpc as rpc

from tidegate_server.core.model import Blocker
from tidegate_server.errors import FieldViolation, InvalidRequest
from tidegate_server.ports import PinFilter
from tidegate_server.rpc.guard import Context, current_caller
from tidegate_server.rpc.mapping import pin_record
from tidegate_server.usecases.clear_blockers import ClearBlockers
from tidegate_server.usecases.pins_operator import ListPins, RetirePins, VerifyPins, hex_bytes
from tidegate_server.usecases.status import Status

log = logging.getLogger("tidegate.operator")

MAX_CORRUPT_IDS = 1000


class OperatorVerbs(NamedTuple):
    """The use cases behind the methods."""

    list_pins: ListPins
    retire_pins: RetirePins
    verify_pins: VerifyPins
    clear_blockers: ClearBlockers
    status: Status


class OperatorServicer(rpc.OperatorServiceServicer):
    """One method a verb. What changes something leaves a line in the log with who asked for it."""

    def __init__(self, verbs: OperatorVerbs) -> None:
        self._verbs = verbs

    async def ListPins(self, request: wire.ListPinsRequest, context: Context) -> wire.ListPinsResponse:
        """A page of pins."""
        page = await self._verbs.list_pins(
            current_caller(),
            route=request.model,
            provider=request.provider,
            pin_id=request.pin_id,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return wire.ListPinsResponse(pins=[pin_record(pin) for pin in page.pins], next_page_token=page.next_after.hex())

    async def RetirePins(self, request: wire.RetirePinsRequest, context: Context) -> wire.RetirePinsResponse:
        """Retire pins for good."""
        which = PinFilter("", request.model, request.provider, hex_bytes(request.pin_id, "pin_id"))
        caller = current_caller()
        retired = await self._verbs.retire_pins(caller, which, why=request.reason, dry_run=request.dry_run)
        if not request.dry_run:
            log.warning("%s retired %d pins: %r", caller.name, retired, request.reason)
        return wire.RetirePinsResponse(retired=retired)

    async def VerifyPins(self, request: wire.VerifyPinsRequest, context: Context) -> wire.VerifyPinsResponse:
        """Check every pin."""
        census = await self._verbs.verify_pins()
        return wire.VerifyPinsResponse(
            checked=census.checked,
            corrupt=len(census.corrupt),
            corrupt_pin_ids=[pin_id.hex() for pin_id in census.corrupt[:MAX_CORRUPT_IDS]],
        )

    async def ClearBlockers(self, request: wire.ClearBlockersRequest, context: Context) -> wire.ClearBlockersResponse:
        """Lift what a collector reported."""
        if request.blocker not in _OBSERVABLE:
            raise InvalidRequest([FieldViolation("blocker", "is not a blocker that can be observed")])
        caller, blocker = current_caller(), Blocker(request.blocker)
        cleared = await self._verbs.clear_blockers(request.provider, request.model, blocker, request.reason, caller)
        log.warning("%s cleared %d blockers of %s: %r", caller.name, cleared, request.provider, request.reason)
        return wire.ClearBlockersResponse(cleared=cleared)

    async def GetStatus(self, request: wire.GetStatusRequest, context: Context) -> wire.GetStatusResponse:
        """Whether the server works, and what an operator should know."""
        status = self._verbs.status()
        return wire.GetStatusResponse(
            ready=status.ready,
            features=status.features,
            configuration_revision=status.revision,
            configuration_error=status.configuration_error,
            dependencies=status.dependencies,
            warnings=status.warnings,
        )


_OBSERVABLE = frozenset(range(Blocker.OVERLOADED + 1))


def add_to(server: grpc.aio.Server, servicer: OperatorServicer) -> str:
    """Serve it; return the service's full name."""
    rpc.add_OperatorServiceServicer_to_server(servicer, server)
    return wire.DESCRIPTOR.services_by_name["OperatorService"].full_name
