"""The flow guard written a second time, straight from the sentences of §8 of the contract, to hold the stores against.

Naive on purpose: a list of hops, everything counted anew at every question, no sums kept.
"""

from dataclasses import dataclass, field

MAX = 2**63 - 1


@dataclass
class NaiveHop:
    hop_id: str
    parent: "NaiveHop | None"
    caller: str
    target: str
    reserve: int
    request_id: str
    recorded: int = 0
    open: bool = True

    @property
    def chain(self) -> list[str]:
        return [*(self.parent.chain if self.parent else []), self.target]

    @property
    def charge(self) -> int:
        if self.open:
            return max(self.reserve, self.recorded)
        return self.recorded


@dataclass
class NaiveFlow:
    depth: int
    fan_out: int
    tokens: int
    time: int
    start: int
    kept_until: int
    hops: list[NaiveHop] = field(default_factory=list)

    @property
    def used(self) -> int:
        return sum(hop.charge for hop in self.hops)

    def hop(self, hop_id: str) -> NaiveHop | None:
        return next((hop for hop in self.hops if hop.hop_id == hop_id), None)


@dataclass
class NaiveGuard:
    """Flows by trace id. `limits`: depth, fan-out, tokens, time (s); times are whole seconds here."""

    limits: tuple[int, int, int, int]
    state_ttl: int
    now: int = 0
    flows: dict[str, NaiveFlow] = field(default_factory=dict)

    def flow(self, trace: str) -> NaiveFlow | None:
        found = self.flows.get(trace)
        return found if found is not None and self.now <= found.kept_until else None

    def parent_of(
        self, flow: NaiveFlow | None, caller: str, proof: "tuple[str, int] | str"
    ) -> "tuple[str, NaiveHop | None]":
        """The parent, or why there is none: ("", hop), ("UNKNOWN", None), ("TIMEOUT", None)."""
        if proof == "bad":
            return "UNKNOWN", None
        if isinstance(proof, tuple):
            hop_id, start = proof
            hop = flow.hop(hop_id) if flow is not None and flow.start == start else None
            if hop is not None:
                return "", hop
            return ("TIMEOUT" if self.now > start + self.limits[3] else "UNKNOWN"), None
        candidates = [hop for hop in (flow.hops if flow else []) if hop.open and hop.target == caller]
        if not candidates:
            return "UNKNOWN", None
        deepest = max(len(hop.chain) for hop in candidates)
        return "", [hop for hop in candidates if len(hop.chain) == deepest][-1]

    def enter(
        self,
        trace: str,
        caller: str,
        target: str,
        hop_id: str,
        proof: "tuple[str, int] | str",
        reserve: int,
        request_id: str,
    ) -> str:
        """ "ok HOP", a reason, or "INVALID"."""
        flow = self.flow(trace)
        again = next((h for h in (flow.hops if flow else []) if request_id and h.request_id == request_id), None)
        parent: NaiveHop | None = None
        if caller:
            if again is not None and proof == "none" and again.caller == caller:
                parent = again.parent
            else:
                why, parent = self.parent_of(flow, caller, proof)
                if why:
                    return why
        if again is not None and (again.parent, again.caller, again.target) != (parent, caller, target):
            return "INVALID"
        if flow is not None and self.now > flow.start + flow.time:
            if caller or again is not None or any(hop.open for hop in flow.hops):
                return "TIMEOUT"
            flow = None
        if again is not None:
            return f"ok {again.hop_id}" if again.open else "HOP_CLOSED"
        depth, fan_out, tokens, time = self.limits
        if flow is None:
            flow = NaiveFlow(depth, fan_out, tokens, time, self.now, self.now + time)
        if parent is not None and not parent.open:
            return "HOP_CLOSED"
        chain = parent.chain if parent is not None else []
        if len(chain) + 1 > flow.depth:
            return "DEPTH_EXCEEDED"
        if target in chain:
            return "CYCLE_DETECTED"
        if len(flow.hops) + 1 > flow.fan_out:
            return "FAN_OUT_EXCEEDED"
        if flow.used >= flow.tokens or flow.used + reserve > flow.tokens:
            return "TOKENS_EXHAUSTED"
        flow.hops.append(NaiveHop(hop_id, parent, caller, target, reserve, request_id))
        flow.kept_until = max(flow.kept_until, self.now + self.state_ttl)
        self.flows[trace] = flow
        return f"ok {hop_id}"

    def check(self, trace: str, agent: str, proof: "tuple[str, int] | str") -> str:
        flow = self.flow(trace)
        why, hop = self.parent_of(flow, agent, proof)
        if why or hop is None or flow is None:
            return why
        if self.now > flow.start + flow.time:
            return "TIMEOUT"
        if not hop.open:
            return "HOP_CLOSED"
        others = sum(other.charge for other in flow.hops if other is not hop)
        return "TOKENS_EXHAUSTED" if others + hop.recorded >= flow.tokens else "ok"

    def exit(self, trace: str, hop_id: str, tokens: int) -> str:
        flow = self.flow(trace)
        hop = flow.hop(hop_id) if flow is not None else None
        if flow is None or hop is None:
            return "no flow" if flow is None else "no hop"
        closes = hop.open
        if closes:
            hop.recorded = min(MAX, hop.recorded + tokens)
            hop.open = False
        return f"{closes} {max(0, flow.tokens - flow.used)}"

    def record(self, trace: str, hop_id: str, tokens: int) -> str:
        flow = self.flow(trace)
        hop = flow.hop(hop_id) if flow is not None else None
        if flow is None or hop is None:
            return "no flow" if flow is None else "no hop"
        hop.recorded = min(MAX, hop.recorded + tokens)
        return f"{min(MAX, flow.used)} {max(0, flow.tokens - flow.used)} {hop.open}"

    def cancel(self, trace: str, hop_id: str) -> None:
        flow = self.flow(trace)
        hop = flow.hop(hop_id) if flow is not None else None
        if flow is None or hop is None or not hop.open:
            return
        if hop.recorded or any(other.parent is hop for other in flow.hops):
            hop.open = False
            return
        flow.hops.remove(hop)
        if not flow.hops:
            del self.flows[trace]
