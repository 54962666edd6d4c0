"""Pin: look a worker's binding up, or make it ahead of the first request (§4.7 of the contract)."""

from tidegate_server.core.decide import check_pin
from tidegate_server.core.model import Caller, CorruptPin, PinState, StoredPin, Verdict
from tidegate_server.core.policy import Route
from tidegate_server.core.refusals import PIN_MISSING, Refusal
from tidegate_server.core.requests import request_faults
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound
from tidegate_server.ports import PinStore
from tidegate_server.usecases.admit import Admission, Admit, AdmitAsk, PinIds
from tidegate_server.usecases.cold_wait import WaitBudget
from tidegate_server.usecases.policies import Policies


class LookedUp:
    """What LOOKUP found: the stored pin, and the refusal that its four checks lead to, if any."""

    def __init__(self, pin: StoredPin | None, refusal: Refusal | None) -> None:
        self.pin = pin
        self.refusal = refusal
        self.verdict = Verdict.ADMITTED if refusal is None else Verdict.REFUSED
        self.pin_state = PinState.NONE if pin is None else PinState.EXISTING


class LookUpPin:
    """LOOKUP: the first four checks of §4.5; no facts are read."""

    def __init__(self, policies: Policies, pins: PinStore, pin_ids: PinIds) -> None:
        self._policies = policies
        self._pins = pins
        self._pin_ids = pin_ids

    async def __call__(self, model: str, worker_id: str, tenant: str, caller: Caller) -> LookedUp:
        """Raises NotFound when the model is no route, InvalidRequest, StoreUnavailable."""
        route = self._route(model)
        faults = [FieldViolation(*fault) for fault in request_faults(worker_id, 0, tenant, ())]
        if faults:
            raise InvalidRequest(faults)
        pin_id = self._pin_ids(caller.namespace, tenant, route.name, worker_id)
        pin = self._pins.peek(pin_id) or await self._pins.get(pin_id)
        if pin is None:
            return LookedUp(None, PIN_MISSING)
        return LookedUp(None if isinstance(pin, CorruptPin) else pin, check_pin(route, pin))

    def _route(self, model: str) -> Route:
        route = self._policies.current.routes.get(model)
        if route is None:
            raise NotFound("model", model)
        return route


class EstablishPin:
    """ESTABLISH: Admit with a request of 0 bytes. A route with `requireFlow` refuses it: such workers need Admit."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit

    async def __call__(
        self, model: str, worker_id: str, tenant: str, effort: str, caller: Caller, budget: WaitBudget
    ) -> Admission:
        """Raises as Admit does."""
        ask = AdmitAsk(model, worker_id, 0, tenant=tenant, reasoning_effort=effort)
        return await self._admit(ask, caller, budget)
