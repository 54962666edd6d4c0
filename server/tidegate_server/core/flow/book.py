"""All flows of one store, and every change to them: a state machine without I/O, clock or randomness.

Each method is one atomic step. What it changed is told to the `listener` before it returns, in the order of the
changes, so that a store can make it durable and show it to watchers. A refused hop changes nothing but the count of
refusals.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from tidegate_server.core.flow.model import (
    Entered,
    EventKind,
    Exited,
    Flow,
    FlowAsk,
    FlowEvent,
    FlowKey,
    FlowPage,
    FlowPlace,
    Hop,
    HopAsk,
    Listener,
    Missing,
    Misused,
    Record,
    Recorded,
    Refused,
    Unproved,
    saturated,
)
from tidegate_server.core.flow.rules import RULES, Place, find_parent, first_refusal
from tidegate_server.core.model import RefusalReason, WallTime
from tidegate_server.core.refusals import Refusal

HOPS_PER_PAGE = 5_000
"""A page of flows ends early once it has so many hops: its size stays bounded whatever `maxFanOut` is."""

_UNKNOWN_AND_TIMEOUT = RULES[:2]


class _Judged(NamedTuple):
    """Where a hop would stand, and what stands against it; `repeat` is the hop that its request id stands for."""

    place: Place
    against: Refused | Misused | None
    repeat: Hop | None = None


class FlowBook:
    """The flows that are kept, by key."""

    def __init__(self, listener: Listener) -> None:
        self._tell = listener
        self._flows: dict[FlowKey, Flow] = {}
        self._expiries: list[tuple[WallTime, FlowKey, WallTime]] = []

    def enter(self, ask: HopAsk, now: WallTime) -> Entered | Refused | Misused:
        """Check and charge in one step (§8)."""
        place, against, repeat = self._judge(ask, now)
        if against is not None:
            self._count_refusal(place, against, ask)
            return against
        flow = place.flow
        assert flow is not None, "a hop that nothing stands against has a flow"
        if repeat is not None:
            flow.put(repeat._replace(claims=repeat.claims + 1))
            return Entered(repeat, flow.start, flow.limits.timeout, repeated=True)
        if ask.hop_id in flow.hops:
            raise ValueError("the new hop's id is taken")
        self._add(flow)
        return Entered(self._charge(flow, place, ask), flow.start, flow.limits.timeout)

    def would_enter(self, ask: HopAsk, now: WallTime, *, count: bool) -> Refused | Misused | None:
        """What `enter` would say against the hop, without the charge; `count` a refusal as one of the flow."""
        place, against, _ = self._judge(ask, now)
        if count and against is not None:
            self._count_refusal(place, against, ask)
        return against

    def check(self, ask: FlowAsk, now: WallTime) -> Refused | None:
        """Whether the agent's hop is open, in time and with tokens left."""
        flow = self._kept(ask.key, now)
        parent = find_parent(flow, ask.proof, ask.agent) if flow is not None else None
        refusal = first_refusal(Place(ask.key, flow, parent, ask.proof, ask.agent, None, 0, now))
        return None if refusal is None else Refused(refusal)

    def cancel(self, key: FlowKey, hop_id: str, now: WallTime) -> None:
        """Undo a grant that was never used; where something hangs on the hop already, close it instead.

        A request id may have given the hop to several callers: it goes when the last of them gives it back.
        """
        flow = self._kept(key, now)
        hop = flow.hops.get(hop_id) if flow is not None else None
        if flow is None or hop is None or hop.end is not None:
            return
        if hop.claims > 1:
            flow.put(hop._replace(claims=hop.claims - 1))
            return
        gone = hop._replace(end=now, success=False)
        if hop.recorded or any(other.parent == hop_id for other in flow.hops.values()):
            flow.put(gone)
            self._tell(FlowEvent(EventKind.EXITED, key, gone))
            return
        flow.remove(hop)
        self._tell(FlowEvent(EventKind.CANCELLED, key, gone))
        if not flow.hops:
            self._forget(flow)

    def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool, now: WallTime) -> Exited | Missing:
        """Close a hop once, and settle its reservation with what was recorded and `tokens`."""
        flow, hop = self._find(key, hop_id, now)
        if flow is None or hop is None:
            return Missing.FLOW if flow is None else Missing.HOP
        if hop.end is not None:
            return Exited(False, flow.left(flow.deepest, now))
        hop = hop._replace(recorded=saturated(hop.recorded + tokens), end=now, success=success)
        flow.put(hop)
        self._tell(FlowEvent(EventKind.EXITED, key, hop))
        return Exited(True, flow.left(flow.deepest, now))

    def record(
        self, key: FlowKey, hop_id: str, tokens: int, request_id: str, now: WallTime
    ) -> Recorded | Missing | Misused:
        """Add tokens to a hop, open or not. A repeat of `request_id` counts once."""
        flow, hop = self._find(key, hop_id, now)
        if flow is None or hop is None:
            return Missing.FLOW if flow is None else Missing.HOP
        record = Record(request_id, hop_id, tokens)
        known = flow.records.get(request_id) if request_id else None
        if known is None:
            hop = hop._replace(recorded=saturated(hop.recorded + tokens))
            flow.put(hop)
            if request_id:
                flow.records[request_id] = record
            self._tell(FlowEvent(EventKind.RECORDED, key, hop, record=record))
        elif known != record:
            return Misused("was used for another record of tokens")
        return Recorded(flow.tokens, flow.left(0, now).tokens, hop.end is None)

    def get(self, key: FlowKey, now: WallTime) -> Flow | None:
        """A copy of one flow."""
        flow = self._kept(key, now)
        return flow.copy() if flow is not None else None

    def peek(self, key: FlowKey) -> Flow | None:
        """The flow itself, for a store that writes it down; not to be changed."""
        return self._flows.get(key)

    def page(self, namespace: str, now: WallTime, *, open_only: bool, after: FlowPlace | None, limit: int) -> FlowPage:
        """Copies of a namespace's flows, newest first."""
        wanted = heapq.nlargest(
            limit + 1, self._listed(namespace, now, open_only=open_only, after=after), key=_place_of
        )
        shown: list[Flow] = []
        hops = 0
        for flow in wanted[:limit]:
            hops += len(flow.hops)
            if shown and hops > HOPS_PER_PAGE:
                break
            shown.append(flow.copy())
        more = len(shown) < len(wanted)
        return FlowPage(tuple(shown), _place_of(shown[-1]) if more else None)

    def sweep(self, now: WallTime, limit: int) -> int:
        """Forget at most `limit` flows whose state is no longer kept; return how many."""
        swept = 0
        while self._expiries and self._expiries[0][0] < now and swept < limit:
            _, key, start = heapq.heappop(self._expiries)
            flow = self._flows.get(key)
            if flow is None or flow.start != start:
                continue
            if flow.keep_until < now:
                self._forget(flow)
                swept += 1
            else:
                heapq.heappush(self._expiries, (flow.keep_until, key, start))
        return swept

    def restore(self, flow: Flow) -> None:
        """Take up a flow that a store has read; tell nobody."""
        self._flows[flow.key] = flow
        heapq.heappush(self._expiries, (flow.keep_until, flow.key, flow.start))

    def __len__(self) -> int:
        """How many flows are held, those not yet swept included."""
        return len(self._flows)

    def _judge(self, ask: HopAsk, now: WallTime) -> _Judged:
        flow = self._kept(ask.key, now)
        repeat = flow.hops.get(flow.requests.get(ask.request_id, "")) if flow is not None else None
        if not ask.caller and repeat is None and (flow is None or (flow.ends < now and not flow.open)):
            flow = Flow(ask.key, ask.limits, now)
        parent = find_parent(flow, ask.proof, ask.caller) if flow is not None and ask.caller else None
        if flow is not None and repeat is not None and ask.proof is Unproved.NO_MEMBER and ask.caller == repeat.caller:
            # The first attempt found its parent by search. That search may end elsewhere by now; its result stands.
            parent = flow.hops.get(repeat.parent)
        place = Place(ask.key, flow, parent, ask.proof, ask.caller, ask.target, ask.reserve, now)
        if repeat is not None:
            return _Judged(place, _judge_repeat(place, repeat), repeat)
        refusal = first_refusal(place)
        return _Judged(place, None if refusal is None else Refused(refusal))

    def _charge(self, flow: Flow, place: Place, ask: HopAsk) -> Hop:
        last = next(reversed(flow.hops.values()), None)
        hop = Hop(
            ask.hop_id,
            place.parent.hop_id if place.parent is not None else "",
            ask.caller,
            ask.target,
            place.depth,
            (*place.chain, ask.target),
            last.order + 1 if last is not None else 0,
            place.now,
            ask.reserve,
            ask.request_id,
            flow.left(place.depth, place.now),
        )
        flow.put(hop)
        hop = hop._replace(remaining=flow.left(hop.depth, place.now))
        flow.put(hop)
        flow.keep_until = max(flow.keep_until, place.now + ask.state_ttl)
        self._tell(FlowEvent(EventKind.ENTERED, flow.key, hop))
        return hop

    def _add(self, flow: Flow) -> None:
        """Make a new flow one of ours; an earlier life of its trace id ends."""
        known = self._flows.get(flow.key)
        if known is flow:
            return
        if known is not None:
            self._forget(known)
        self.restore(flow)

    def _count_refusal(self, place: Place, against: Refused | Misused, ask: HopAsk) -> None:
        if isinstance(against, Misused):
            return
        known = self._flows.get(ask.key)
        if known is not None and known is place.flow:
            known.refusals += 1
        self._tell(FlowEvent(EventKind.REFUSED, ask.key, ask=ask, refusal=against.refusal))

    def _kept(self, key: FlowKey, now: WallTime) -> Flow | None:
        flow = self._flows.get(key)
        return flow if flow is not None and now <= flow.keep_until else None

    def _find(self, key: FlowKey, hop_id: str, now: WallTime) -> tuple[Flow | None, Hop | None]:
        flow = self._kept(key, now)
        return flow, flow.hops.get(hop_id) if flow is not None else None

    def _forget(self, flow: Flow) -> None:
        del self._flows[flow.key]
        self._tell(FlowEvent(EventKind.FORGOTTEN, flow.key))

    def _listed(self, namespace: str, now: WallTime, *, open_only: bool, after: FlowPlace | None) -> Iterator[Flow]:
        for flow in self._flows.values():
            if flow.key.namespace != namespace or flow.keep_until < now or (open_only and not flow.open):
                continue
            if after is None or _place_of(flow) < after:
                yield flow


def _judge_repeat(place: Place, hop: Hop) -> Refused | Misused | None:
    """A request id stands for one hop. Its parent, caller and target are bound to it; its limits were checked once."""
    proved = not place.agent or place.parent is not None
    parent = place.parent.hop_id if place.parent is not None else ""
    if proved and (parent, place.agent, place.target) != (hop.parent, hop.caller, hop.target):
        return Misused("was used for another parent, caller or target in this flow")
    refusal = first_refusal(place, _UNKNOWN_AND_TIMEOUT)
    if refusal is None and hop.end is not None:
        refusal = Refusal(
            RefusalReason.FLOW_HOP_CLOSED,
            "The hop that this request_id stands for has exited.",
            "a new request_id for a new attempt",
        )
    return None if refusal is None else Refused(refusal)


def _place_of(flow: Flow) -> FlowPlace:
    return FlowPlace(flow.start, flow.key.trace_id)
