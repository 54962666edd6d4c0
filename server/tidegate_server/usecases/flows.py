"""The flow guard's verbs: enter, exit, record, and what an admission asks of it (§8 of the contract).

A malformed request is `InvalidRequest`. A limit that says no is an answer, a `Refusal`. So is a store that does not
answer, as far as a hop or an inference request waits for it: FLOW_GUARD_UNAVAILABLE, never "allowed".
"""

import contextlib
import json
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tidegate_server.core.decision_record import HOP, DecisionRecord
from tidegate_server.core.flow.ancestry import Keyring, sign, verify
from tidegate_server.core.flow.model import (
    MAX_TIMEOUT,
    Entered,
    Exited,
    FlowAsk,
    FlowKey,
    FlowSettings,
    Granted,
    HopAsk,
    Missing,
    Misused,
    Recorded,
    Refused,
    Signed,
    Unproved,
)
from tidegate_server.core.flow.tracecontext import (
    Traceparent,
    parse_traceparent,
    parse_tracestate,
    write_tracestate,
)
from tidegate_server.core.model import Caller, RefusalReason
from tidegate_server.core.refusals import Refusal
from tidegate_server.core.requests import id_fault
from tidegate_server.errors import FieldViolation, FlowStartNotAllowed, InvalidRequest, NotFound, StoreUnavailable
from tidegate_server.ports import Clock, DecisionLog, FlowStore

Settled = TypeVar("Settled", Exited, Recorded)

GUARD_UNAVAILABLE = Refusal(
    RefusalReason.FLOW_GUARD_UNAVAILABLE,
    "The flow guard cannot be asked now, and nothing is allowed unasked.",
    "a retry with backoff and the same request_id",
)


class HopRequest(NamedTuple):
    """A hop as it was asked for; nothing is checked yet."""

    traceparent: str
    tracestate: str
    caller_agent: str
    target_agent: str
    request_id: str = ""
    reserve_tokens: int = 0
    profile: str = ""


class FlowRequest(NamedTuple):
    """The place of an inference request in a flow, as it was told; nothing is checked yet."""

    traceparent: str
    tracestate: str
    agent: str


class Asked(NamedTuple):
    """A hop that is well formed, with what its grant has to carry on."""

    ask: HopAsk
    traceparent: Traceparent
    others: tuple[str, ...]


class FlowGuard:
    """All that may be asked of the flow guard, bar its status.

    `settings` and `keyring` are asked at each call, so that a reload counts at once (a flow keeps the limits that it
    was started with). `new_hop_id` mints 16 digits of lower-case hex, never zero and never twice.
    """

    def __init__(
        self,
        store: FlowStore,
        settings: Callable[[], FlowSettings],
        keyring: Callable[[], Keyring],
        new_hop_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._settings = settings
        self._keyring = keyring
        self._new_hop_id = new_hop_id

    def hop(self, request: HopRequest, caller: Caller, field: str = "") -> Asked:
        """Check a hop's form and the right to start flows. `field` is where it stands in the message ("hop.").

        Raises InvalidRequest with every fault, FlowStartNotAllowed.
        """
        traceparent = parse_traceparent(request.traceparent)
        limits = self._settings().limits.get(request.profile)
        faults = [
            ("traceparent", traceparent if isinstance(traceparent, str) else ""),
            ("caller_agent", id_fault(request.caller_agent, required=False)),
            ("target_agent", id_fault(request.target_agent)),
            ("request_id", id_fault(request.request_id, required=False)),
            ("reserve_tokens", "is negative" if request.reserve_tokens < 0 else ""),
            ("profile", "is not configured" if limits is None else ""),
        ]
        _reject(faults, field)
        assert isinstance(traceparent, Traceparent)
        assert limits is not None
        if not request.caller_agent and not caller.start_flows:
            raise FlowStartNotAllowed
        key = FlowKey(caller.namespace, traceparent.trace_id)
        state = parse_tracestate(request.tracestate)
        proof = (
            verify(self._keyring(), key, request.caller_agent, state.ours)
            if request.caller_agent
            else Unproved.NO_MEMBER
        )
        ask = HopAsk(
            key,
            proof,
            request.caller_agent,
            request.target_agent,
            self._new_hop_id(),
            limits.bounded(),
            min(self._settings().state_ttl, MAX_TIMEOUT),
            request.request_id,
            request.reserve_tokens,
        )
        return Asked(ask, traceparent, state.others)

    def place(self, request: FlowRequest, caller: Caller, field: str = "") -> FlowAsk:
        """Check the form of an inference request's place. Raises InvalidRequest with every fault."""
        traceparent = parse_traceparent(request.traceparent)
        faults = [
            ("traceparent", traceparent if isinstance(traceparent, str) else ""),
            ("agent", id_fault(request.agent)),
        ]
        _reject(faults, field)
        assert isinstance(traceparent, Traceparent)
        key = FlowKey(caller.namespace, traceparent.trace_id)
        ours = parse_tracestate(request.tracestate).ours
        return FlowAsk(key, verify(self._keyring(), key, request.agent, ours), request.agent)

    async def enter(self, asked: Asked, field: str = "") -> Granted | Refusal:
        """Check and charge the hop in one step; a grant carries the trace context for the agent.

        Raises InvalidRequest when the request id stands for another hop.
        """
        try:
            answer = await self._store.enter(asked.ask)
        except StoreUnavailable:
            return GUARD_UNAVAILABLE
        if isinstance(answer, Entered):
            return self._grant(asked, answer)
        return _refusal(answer, field)

    async def would_enter(self, asked: Asked, *, count: bool, field: str = "") -> Refusal | None:
        """What `enter` would say against the hop now; charges nothing. `count` a refusal as one of the flow."""
        try:
            answer = await self._store.would_enter(asked.ask, count=count)
        except StoreUnavailable:
            return GUARD_UNAVAILABLE
        return None if answer is None else _refusal(answer, field)

    async def check(self, ask: FlowAsk) -> Refusal | None:
        """Whether the agent's hop is open, in time and with tokens left; charges nothing."""
        try:
            answer = await self._store.check(ask)
        except StoreUnavailable:
            return GUARD_UNAVAILABLE
        return None if answer is None else answer.refusal

    async def cancel(self, grant: Granted) -> None:
        """Give back a hop that will not be used. If the store cannot be asked, it stays charged."""
        with contextlib.suppress(StoreUnavailable):
            await self._store.cancel(grant.key, grant.hop.hop_id)

    async def exit(self, traceparent: str, hop_id: str, tokens: int, success: bool, caller: Caller) -> Exited:
        """Close a hop once. Raises InvalidRequest, NotFound, StoreUnavailable."""
        key = _settled(traceparent, hop_id, tokens, "", caller)
        return _found(await self._store.exit(key, hop_id, tokens, success), key, hop_id)

    async def record(self, traceparent: str, hop_id: str, tokens: int, request_id: str, caller: Caller) -> Recorded:
        """Add tokens that a hop has used. Raises InvalidRequest, NotFound, StoreUnavailable."""
        key = _settled(traceparent, hop_id, tokens, request_id, caller)
        answer = await self._store.record(key, hop_id, tokens, request_id)
        if isinstance(answer, Misused):
            raise InvalidRequest([FieldViolation("request_id", answer.description)])
        return _found(answer, key, hop_id)

    def _grant(self, asked: Asked, entered: Entered) -> Granted:
        key, hop = asked.ask.key, entered.hop
        member = sign(self._keyring(), key, hop.target, Signed(hop.hop_id, entered.start, entered.timeout))
        return Granted(key, hop, asked.traceparent.child(hop.hop_id), write_tracestate(member, asked.others))


class EnterHop:
    """EnterHop as a call of its own: a refusal is written to the decision log (§10)."""

    def __init__(self, guard: FlowGuard, log: DecisionLog, clock: Clock, new_id: Callable[[], str]) -> None:
        self._guard = guard
        self._log = log
        self._clock = clock
        self._new_id = new_id

    async def __call__(self, request: HopRequest, caller: Caller) -> Granted | Refusal:
        """Enter the hop. Raises InvalidRequest, FlowStartNotAllowed."""
        asked = self._guard.hop(request, caller)
        answer = await self._guard.enter(asked)
        if isinstance(answer, Refusal):
            self._log.append(self._record(asked.ask, answer))
        return answer

    def _record(self, ask: HopAsk, refusal: Refusal) -> DecisionRecord:
        detail = {
            "flow_id": ask.key.trace_id,
            "caller_agent": ask.caller,
            "target_agent": ask.target,
            "reserve_tokens": ask.reserve,
            "message": refusal.message,
        }
        return DecisionRecord(
            self._new_id(),
            self._clock.wall(),
            HOP,
            ask.key.trace_id,
            "REFUSED",
            refusal.reason.name,
            namespace=ask.key.namespace,
            detail=json.dumps(detail, ensure_ascii=False),
        )


class HopOfAdmission:
    """A `FlowContext` of Admit: a hop that is checked first and entered with the admission."""

    def __init__(self, guard: FlowGuard, asked: Asked, *, dry_run: bool, field: str = "hop.") -> None:
        self._guard = guard
        self._asked = asked
        self._dry_run = dry_run
        self._field = field
        self._grant: Granted | None = None

    async def check(self) -> Refusal | None:
        """What stands against the hop now. With `dry_run` not even the refusal is counted."""
        return await self._guard.would_enter(self._asked, count=not self._dry_run, field=self._field)

    async def enter(self) -> Granted | Refusal | None:
        """Enter and charge the hop."""
        answer = await self._guard.enter(self._asked, self._field)
        if isinstance(answer, Granted):
            self._grant = answer
        return answer

    async def cancel(self) -> None:
        """Give the hop back, once."""
        grant, self._grant = self._grant, None
        if grant is not None:
            await self._guard.cancel(grant)


class PlaceOfAdmission:
    """A `FlowContext` of Admit: a hop that was entered before and has to be open."""

    def __init__(self, guard: FlowGuard, ask: FlowAsk) -> None:
        self._guard = guard
        self._ask = ask

    async def check(self) -> Refusal | None:
        """What stands against the inference request."""
        return await self._guard.check(self._ask)

    async def enter(self) -> Granted | Refusal | None:
        """Nothing is entered, and nothing charged."""
        return None

    async def cancel(self) -> None:
        """Nothing was entered."""


def _reject(faults: list[tuple[str, str]], field: str) -> None:
    violations = [FieldViolation(field + name, fault) for name, fault in faults if fault]
    if violations:
        raise InvalidRequest(violations)


def _refusal(answer: Refused | Misused, field: str) -> Refusal:
    if isinstance(answer, Misused):
        raise InvalidRequest([FieldViolation(f"{field}request_id", answer.description)])
    return answer.refusal


def _settled(traceparent: str, hop_id: str, tokens: int, request_id: str, caller: Caller) -> FlowKey:
    parsed = parse_traceparent(traceparent)
    faults = [
        ("traceparent", parsed if isinstance(parsed, str) else ""),
        ("hop_id", id_fault(hop_id)),
        ("tokens", "is negative" if tokens < 0 else ""),
        ("request_id", id_fault(request_id, required=False)),
    ]
    _reject(faults, "")
    assert isinstance(parsed, Traceparent)
    return FlowKey(caller.namespace, parsed.trace_id)


def _found(answer: Settled | Missing, key: FlowKey, hop_id: str) -> Settled:
    if isinstance(answer, Missing):
        raise NotFound("flow", key.trace_id) if answer is Missing.FLOW else NotFound("hop", hop_id)
    return answer
