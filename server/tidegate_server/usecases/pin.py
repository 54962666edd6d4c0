"""Pin: look a worker's binding up, or make it ahead of the first request (§4.7 of the contract)."""

from typing import NamedTuple

from tidegate_server.core.decide import check_pin
from tidegate_server.core.model import Caller, Pin, PinState, Verdict
from tidegate_server.core.refusals import PIN_MISSING, Refusal
from tidegate_server.core.requests import request_faults
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import PinStore
from tidegate_server.usecases.admit import Admission, AdmitAsk, PinIds
from tidegate_server.usecases.cold_wait import WaitBudget
from tidegate_server.usecases.log_admissions import Admits
from tidegate_server.usecases.policies import Policies


class LookedUp(NamedTuple):
    """What LOOKUP found: the stored pin where it is readable, and the refusal that its four checks lead to, if any."""

    verdict: Verdict
    pin_state: PinState = PinState.NONE
    pin: Pin | None = None
    refusal: Refusal | None = None


class LookUpPin:
    """LOOKUP: the first four checks of §4.5; no facts are read."""

    def __init__(self, policies: Policies, pins: PinStore, pin_ids: PinIds) -> None:
        self._policies = policies
        self._pins = pins
        self._pin_ids = pin_ids

    async def __call__(self, model: str, worker_id: str, tenant: str, caller: Caller) -> LookedUp:
        """Raises NotFound when the model is not configured, InvalidRequest, StoreUnavailable."""
        policy = self._policies.current
        route = policy.routes.get(model)
        if route is None:
            if model not in policy.models:
                raise NotFound("model", model)
            return LookedUp(Verdict.BYPASSED)
        faults = [FieldViolation(*fault) for fault in request_faults(worker_id, 0, tenant, ())]
        if faults:
            raise InvalidRequest(faults)
        pin_id = self._pin_ids(caller.namespace, tenant, route.name, worker_id)
        pin = self._pins.peek(pin_id) or await self._pins.get(pin_id)
        if pin is None:
            return LookedUp(Verdict.REFUSED, refusal=PIN_MISSING)
        refusal = check_pin(route, pin)
        readable = pin if isinstance(pin, Pin) else None
        verdict = Verdict.ADMITTED if refusal is None else Verdict.REFUSED
        return LookedUp(verdict, PinState.EXISTING, readable, refusal)


class EstablishPin:
    """ESTABLISH: Admit with a request of 0 bytes. A route with `requireFlow` refuses it: such workers need Admit."""

    def __init__(self, admit: Admits) -> None:
        self._admit = admit

    async def __call__(
        self, model: str, worker_id: str, tenant: str, effort: str, caller: Caller, budget: WaitBudget
    ) -> Admission:
        """Raises as Admit does."""
        ask = AdmitAsk(model, worker_id, 0, tenant=tenant, reasoning_effort=effort)
        return await self._admit(ask, caller, budget)
