"""Admit: may this work start now, and on which provider? (§4 of the contract)"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidegate_server.core.decide import Decision, decide, screen
from tidegate_server.core.flow.model import Granted
from tidegate_server.core.model import Caller, RefusalReason, Request, StoredPin, Verdict, WallTime
from tidegate_server.core.pins import new_pin
from tidegate_server.core.policy import Policy, Route
from tidegate_server.core.refusals import FLOW_REQUIRED, Refusal
from tidegate_server.core.requests import request_faults
from tidegate_server.errors import FieldViolation, InvalidRequest, NotFound, StoreUnavailable
from tidegate_server.ports import Clock, FactStore, PinStore
from tidegate_server.usecases.cold_wait import ColdWait, WaitBudget
from tidegate_server.usecases.policies import Policies

PinIds = Callable[[str, str, str, str], bytes]
"""The keyed hash of namespace, tenant, route and worker (§5)."""


RESTS_ON_FACTS = frozenset(
    {
        RefusalReason.CAPACITY_UNKNOWN,
        RefusalReason.NO_ELIGIBLE_CANDIDATE,
        RefusalReason.PIN_PAID_PREREQUISITE_LIFTED,
        RefusalReason.PIN_PROVIDER_UNAVAILABLE,
    }
)
"""The refusals that other facts could have made another answer of."""


class FlowContext(Protocol):
    """The flow that an admission belongs to: a hop to be entered with it, or one that must be open (§8)."""

    async def check(self) -> Refusal | None:
        """What the flow guard says now; charges nothing."""
        ...

    async def enter(self) -> Granted | Refusal | None:
        """Enter and charge the hop; None where there is none to enter."""
        ...

    async def cancel(self) -> None:
        """Take the entered hop back: the admission did not come about."""
        ...


class AdmitAsk(NamedTuple):
    """An admission as it was asked for; nothing is checked yet. `request_bytes` None: the caller gave none."""

    model: str
    worker_id: str
    request_bytes: int | None
    tenant: str = ""
    reasoning_effort: str = ""
    compaction: bool = False
    provider_state: str = ""
    input_modalities: tuple[str, ...] = ()
    require_pin: bool = False
    explain: bool = False
    dry_run: bool = False
    request_id: str = ""
    flow: FlowContext | None = None


class Admission(NamedTuple):
    """The answer, with what it takes to tell it.

    `pin` is what is stored now, `flow` what the flow guard said, `wall` the time by the wall clock.
    """

    ask: AdmitAsk
    decision: Decision
    decision_id: str
    wall: WallTime
    route: Route | None = None
    pin: StoredPin | None = None
    hop: Granted | None = None
    flow: Refusal | None = None


class Admit:
    """Decide, wait for facts where that may help, enter the hop, store the pin, answer."""

    def __init__(
        self,
        policies: Policies,
        facts: FactStore,
        pins: PinStore,
        pin_ids: PinIds,
        cold_wait: ColdWait,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._policies = policies
        self._facts = facts
        self._pins = pins
        self._pin_ids = pin_ids
        self._cold_wait = cold_wait
        self._clock = clock
        self._new_id = new_id

    async def __call__(self, ask: AdmitAsk, caller: Caller, budget: WaitBudget) -> Admission:
        """Answer one admission. Raises NotFound, InvalidRequest, StoreUnavailable: then no decision was possible."""
        policy = self._policies.current
        route = policy.routes.get(ask.model)
        if route is None:
            return await self._bypass(policy, ask)
        return await self._admit(policy, route, ask, checked_request(ask), caller, budget)

    def at_once(self, ask: AdmitAsk, caller: Caller) -> Admission | None:
        """The answer that needs no await: that of a bound worker whose pin is in memory and who may go on, in no flow.

        None: call it. What is admitted here is what a call would have answered. Raises StoreUnavailable.
        """
        route = self._policies.current.routes.get(ask.model)
        if route is None or route.require_flow or ask.flow is not None:
            return None
        if any(request_faults(ask.worker_id, ask.request_bytes, ask.tenant, ask.input_modalities)):
            return None
        pin = self._pins.peek(self._pin_ids(caller.namespace, ask.tenant, route.name, ask.worker_id))
        if pin is None:
            return None
        decision = self._decide(route, core_request(ask), pin, None)
        return self._answer(ask, decision, route, pin) if decision.verdict is Verdict.ADMITTED else None

    async def _bypass(self, policy: Policy, ask: AdmitAsk) -> Admission:
        """Step 1: an explicit model is an explicit choice. No policy, no pin, no wait; its flow is still checked."""
        candidate = policy.models.get(ask.model)
        if candidate is None:
            raise NotFound("model", ask.model)
        decision = Decision(Verdict.BYPASSED, candidate, effort=ask.reasoning_effort, now=self._clock.monotonic())
        hop = None
        if ask.flow is not None:
            said: Granted | Refusal | None = await ask.flow.check()
            if said is None and not ask.dry_run:
                said = await ask.flow.enter()
            if isinstance(said, Refusal):
                decision = Decision(Verdict.REFUSED, refusal=said, now=decision.now)
            else:
                hop = said
        return self._answer(ask, decision, hop=hop)

    async def _admit(
        self, policy: Policy, route: Route, ask: AdmitAsk, request: Request, caller: Caller, budget: WaitBudget
    ) -> Admission:
        """Steps 3 to 9."""
        pin_id = self._pin_ids(caller.namespace, ask.tenant, route.name, ask.worker_id)
        pin: StoredPin | None = None
        if request.compaction:  # the only one that step 3 asks for its pin
            pin = self._pins.peek(pin_id) or await self._pins.get(pin_id)
        if screen(route, request, has_pin=pin is not None) is not None:
            return self._answer(ask, self._decide(route, request, pin, None), route, pin)
        flow = await self._flow_says(route, ask)
        if not request.compaction:
            pin = self._pins.peek(pin_id) or await self._pins.get(pin_id)
        decision = self._decide(route, request, pin, flow)
        if decision.wait_for and not ask.dry_run:
            decision = await self._cold_wait.settle(
                lambda: self._decide(route, request, pin, flow), decision, budget, policy.cold_wait
            )
        if ask.dry_run or decision.verdict is not Verdict.ADMITTED:
            return self._answer(ask, decision, route, pin, flow=flow)
        return await self._bind(route, ask, request, caller.namespace, pin_id, pin, decision)

    async def _bind(
        self,
        route: Route,
        ask: AdmitAsk,
        request: Request,
        namespace: str,
        pin_id: bytes,
        pin: StoredPin | None,
        decision: Decision,
    ) -> Admission:
        """Enter the hop, then store the pin. A crash in between leaves a charged hop, never a pin without its hop."""
        hop = await ask.flow.enter() if ask.flow is not None else None
        if isinstance(hop, Refusal):
            return self._answer(ask, self._decide(route, request, pin, hop), route, pin, flow=hop)
        bound = False
        try:
            if pin is None:
                assert decision.candidate is not None
                ours = new_pin(route, decision.candidate, namespace, pin_id, self._clock.wall())
                pin, is_ours = await self._pins.create(ours)
                if not is_ours:  # somebody was first: their pin is judged like any other (§5)
                    decision = self._decide(route, request, pin, None)
            bound = decision.verdict is Verdict.ADMITTED
        finally:
            if hop is not None and not bound:
                assert ask.flow is not None
                await ask.flow.cancel()
        return self._answer(ask, decision, route, pin, hop if bound else None)

    async def _flow_says(self, route: Route, ask: AdmitAsk) -> Refusal | None:
        """Step 5. A hop is checked here without charge; it is entered after the decision."""
        if ask.flow is not None:
            return await ask.flow.check()
        return FLOW_REQUIRED if route.require_flow else None

    def _decide(self, route: Route, request: Request, pin: StoredPin | None, flow: Refusal | None) -> Decision:
        now = self._clock.monotonic()
        try:
            return decide(route, request, pin, self._facts.groups(), now, flow)
        except StoreUnavailable:
            # Facts are shown with every refusal; one that rests on none of them stands without them, too.
            decision = decide(route, request, pin, {}, now, flow)
            if decision.refusal is None or decision.refusal.reason in RESTS_ON_FACTS:
                raise
            return decision

    def _answer(
        self,
        ask: AdmitAsk,
        decision: Decision,
        route: Route | None = None,
        pin: StoredPin | None = None,
        hop: Granted | None = None,
        flow: Refusal | None = None,
    ) -> Admission:
        return Admission(ask, decision, self._new_id(), self._clock.wall(), route, pin, hop, flow)


def checked_request(ask: AdmitAsk) -> Request:
    """Step 2: the request as the policy sees it; raises InvalidRequest with every fault."""
    faults = request_faults(ask.worker_id, ask.request_bytes, ask.tenant, ask.input_modalities)
    violations = [FieldViolation(*fault) for fault in faults]
    if violations:
        raise InvalidRequest(violations)
    return core_request(ask)


def core_request(ask: AdmitAsk) -> Request:
    """The request as the policy sees it, of an ask without faults."""
    assert ask.request_bytes is not None
    return Request(
        ask.worker_id,
        ask.request_bytes,
        ask.reasoning_effort,
        ask.compaction,
        ask.provider_state,
        ask.input_modalities,
        ask.require_pin,
        ask.explain,
    )
