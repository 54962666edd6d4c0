"""The words of the flow guard.

All times here are flow time: nanoseconds since the Unix epoch that a store anchors once and then counts monotonically,
so that a step of the wall clock changes nothing (`stores.flow_time`; the shared store has its server's clock). Ids are
lower-case hex, as on the wire.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeAlias

from tidegate_server.core.model import SECOND, Nanos, WallTime
from tidegate_server.core.refusals import Refusal

MAX_TOKENS = (1 << 63) - 1
"""Where sums of tokens saturate: the largest int64."""

MAX_COUNT = (1 << 31) - 1
"""The largest depth and fan-out: the largest int32."""

MAX_TIMEOUT: Nanos = 100 * 365 * 86_400 * SECOND
"""The longest time limit, 100 years: an instant that far ahead still fits 63 bits of nanoseconds."""


def saturated(tokens: int) -> int:
    """`tokens`, or the largest number that the wire can carry."""
    return min(tokens, MAX_TOKENS)


class FlowLimits(NamedTuple):
    """What one flow may use. A flow keeps the limits that it was started with."""

    max_depth: int = 5
    max_fan_out: int = 20
    max_tokens: int = 100_000
    timeout: Nanos = 120 * SECOND

    def bounded(self) -> "FlowLimits":
        """The same limits, where they would not fit the wire or a column the largest that do."""
        return FlowLimits(
            min(self.max_depth, MAX_COUNT),
            min(self.max_fan_out, MAX_COUNT),
            saturated(self.max_tokens),
            min(self.timeout, MAX_TIMEOUT),
        )


class FlowSettings(NamedTuple):
    """What is configured: the limits by profile ("" is for a flow without one), and for how long state is kept."""

    limits: Mapping[str, FlowLimits] = {"": FlowLimits()}
    state_ttl: Nanos = 300 * SECOND


class FlowKey(NamedTuple):
    """One flow: a trace id of one namespace. Equal trace ids of two namespaces are two flows."""

    namespace: str
    trace_id: str


class Signed(NamedTuple):
    """What a `tidegate` member with a good signature proves: it was granted in this flow, to the agent that shows it.

    `start` is the flow's start and `timeout` its time limit, both as they were when the hop was granted.
    """

    hop_id: str
    start: WallTime
    timeout: Nanos


class Unproved(Enum):
    """What stands in the place of a proof."""

    NO_MEMBER = "no member"
    BAD_MEMBER = "bad member"


Proof: TypeAlias = Signed | Unproved


class HopAsk(NamedTuple):
    """A hop that wants to be entered. Everything in here was checked for form; nothing for policy.

    `hop_id` is the id that the hop gets if it is granted. `caller` "" is the gateway's own call. `limits` are those of
    a flow that this hop would start.
    """

    key: FlowKey
    proof: Proof
    caller: str
    target: str
    hop_id: str
    limits: FlowLimits
    state_ttl: Nanos
    request_id: str = ""
    reserve: int = 0


class FlowAsk(NamedTuple):
    """An inference request that names its place in a flow and charges nothing."""

    key: FlowKey
    proof: Proof
    agent: str


class Remaining(NamedTuple):
    """What is left; never negative. `depth` is below the hop in question, of a whole flow below its deepest hop."""

    depth: int
    fan_out: int
    tokens: int
    time: Nanos


class Hop(NamedTuple):
    """One call into an agent, as it stands.

    `order` counts the hops of a flow from 0. `remaining` is what the flow had left when this hop was granted, so that a
    repeat of its request can answer the same. `recorded` never exceeds MAX_TOKENS. `claims` counts the callers that
    were granted this hop by one request id: it is undone only when all of them take it back.
    """

    hop_id: str
    parent: str
    caller: str
    target: str
    depth: int
    chain: tuple[str, ...]
    order: int
    start: WallTime
    reserve: int
    request_id: str
    remaining: Remaining
    recorded: int = 0
    end: WallTime | None = None
    success: bool | None = None
    claims: int = 1

    @property
    def charge(self) -> int:
        """§8: an open hop is charged max(reserve, recorded), a closed one what was recorded."""
        return max(self.reserve, self.recorded) if self.end is None else self.recorded


class Record(NamedTuple):
    """A RecordTokens call that had a request id: a repeat counts once."""

    request_id: str
    hop_id: str
    tokens: int


class Flow:
    """All hops under one key since `start`, in the order of entry, and sums over them.

    `used` is the exact sum of all charges; what is shown of it saturates. `deepest` is the depth of the deepest hop.
    `keep_until` is the last instant at which the state is kept.

    Mutable, and changed by `book.FlowBook` alone; whoever gets one from a store got a copy.
    """

    __slots__ = (
        "deepest", "hops", "keep_until", "key", "limits", "open", "records", "refusals", "requests", "start", "used",
    )  # fmt: skip

    def __init__(self, key: FlowKey, limits: FlowLimits, start: WallTime) -> None:
        self.key = key
        self.limits = limits
        self.start = start
        self.keep_until = start + limits.timeout
        self.refusals = 0
        self.used = 0
        self.deepest = 0
        self.hops: dict[str, Hop] = {}
        self.open: dict[str, Hop] = {}
        self.requests: dict[str, str] = {}
        self.records: dict[str, Record] = {}

    @property
    def ends(self) -> WallTime:
        """The last instant at which the flow is in time."""
        return self.start + self.limits.timeout

    @property
    def tokens(self) -> int:
        """What all hops are charged together, saturated."""
        return saturated(self.used)

    @property
    def root_agent(self) -> str:
        """The first agent that was called."""
        return next((hop.target for hop in self.hops.values()), "")

    def put(self, hop: Hop) -> None:
        """Add a hop, or replace it by its newer self, and keep the sums."""
        old = self.hops.get(hop.hop_id)
        self.used += hop.charge - (old.charge if old is not None else 0)
        self.hops[hop.hop_id] = hop
        self.deepest = max(self.deepest, hop.depth)
        if hop.request_id:
            self.requests[hop.request_id] = hop.hop_id
        if hop.end is None:
            self.open[hop.hop_id] = hop
        else:
            self.open.pop(hop.hop_id, None)

    def remove(self, hop: Hop) -> None:
        """Take a hop away as if it had never been."""
        self.used -= hop.charge
        del self.hops[hop.hop_id]
        self.open.pop(hop.hop_id, None)
        self.requests.pop(hop.request_id, None)
        self.deepest = max((other.depth for other in self.hops.values()), default=0)

    def left(self, depth: int, now: WallTime) -> Remaining:
        """What is left below `depth` at `now`."""
        return Remaining(
            max(0, self.limits.max_depth - depth),
            max(0, self.limits.max_fan_out - len(self.hops)),
            max(0, self.limits.max_tokens - self.used),
            max(0, self.ends - now),
        )

    def copy(self) -> "Flow":
        """The flow as it stands, safe from what comes."""
        twin = Flow(self.key, self.limits, self.start)
        twin.keep_until, twin.refusals, twin.used = self.keep_until, self.refusals, self.used
        twin.hops, twin.open, twin.requests = dict(self.hops), dict(self.open), dict(self.requests)
        twin.records, twin.deepest = dict(self.records), self.deepest
        return twin


class Entered(NamedTuple):
    """The hop was charged, or had been by an earlier call with the same request id (`repeated`)."""

    hop: Hop
    start: WallTime
    timeout: Nanos
    repeated: bool = False


class Granted(NamedTuple):
    """An entered hop, and the trace context to pass to its agent."""

    key: FlowKey
    hop: Hop
    traceparent: str
    tracestate: str


class Refused(NamedTuple):
    """A limit says no. Nothing was charged, nothing prolonged."""

    refusal: Refusal


class Misused(NamedTuple):
    """The request id stands for something else already: the call is malformed."""

    description: str


class Missing(Enum):
    """What a call that settles names, and the store does not have."""

    FLOW = "flow"
    HOP = "hop"


class Exited(NamedTuple):
    """`closed` is False when it was closed before."""

    closed: bool
    remaining: Remaining


class Recorded(NamedTuple):
    """The flow's tokens after a record."""

    used: int
    remaining: int
    hop_open: bool

    @property
    def exhausted(self) -> bool:
        """Nothing is left."""
        return self.remaining == 0


class EventKind(Enum):
    """What happened in a flow."""

    ENTERED = "entered"
    EXITED = "exited"
    RECORDED = "recorded"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    FORGOTTEN = "forgotten"


class FlowEvent(NamedTuple):
    """One change. `hop` is the hop after it; a refusal has the ask and the refusal instead; FORGOTTEN has neither."""

    kind: EventKind
    key: FlowKey
    hop: Hop | None = None
    ask: HopAsk | None = None
    refusal: Refusal | None = None
    record: Record | None = None


Listener: TypeAlias = Callable[[FlowEvent], None]


class FlowPlace(NamedTuple):
    """Where a page of flows starts: after the flow with this start and trace id (the newest come first)."""

    start: WallTime
    trace_id: str


class FlowPage(NamedTuple):
    """A page of flows, newest first; `next` is where the next one starts, None at the end."""

    flows: tuple[Flow, ...]
    next: FlowPlace | None
