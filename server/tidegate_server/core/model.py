"""The contract's words as types.

Enumerations carry the numbers of the wire, so that mapping them is a lookup. Times are whole nanoseconds: an instant on
the server's monotonic clock (`Instant`) or since the Unix epoch (`WallTime`), a length of time (`Nanos`). Whole numbers
keep a limit exact: at 15 s a fact is fresh, one nanosecond later it is stale.
"""

from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple, TypeAlias

Nanos: TypeAlias = int
Instant: TypeAlias = int
WallTime: TypeAlias = int

SECOND: Nanos = 1_000_000_000
NEVER: Instant = 1 << 62
"""Later than any instant that a monotonic clock can show (146 years)."""


class Tier(IntEnum):
    """A provider's kind; the order is the order of preference (§4.2 of the contract)."""

    LOCAL = 1
    SUBSCRIPTION = 2
    PAID = 3


class Verdict(IntEnum):
    """The answer to an admission."""

    ADMITTED = 1
    REFUSED = 2
    BYPASSED = 3


class PinState(IntEnum):
    """Whether the answer rests on a pin, and on whose."""

    NONE = 1
    NEW = 2
    EXISTING = 3


class CandidateVerdict(IntEnum):
    """What a candidate's facts say about a request (§4.3)."""

    ELIGIBLE = 1
    UNSUITABLE = 2
    NOT_AUTHORIZED = 3
    BLOCKED = 4
    UNKNOWN = 5
    STALE = 6
    BUSY = 7


class Blocker(IntEnum):
    """What keeps a candidate from being used. Values 1 to 6 may stand in an availability observation."""

    NONE = 0
    QUOTA_EXHAUSTED = 1
    AUTH_FAILED = 2
    ACCOUNT_DISABLED = 3
    PROVIDER_DOWN = 4
    RATE_LIMITED = 5
    OVERLOADED = 6
    QUOTA_BELOW_RESERVE = 7
    BALANCE_EMPTY = 8
    UNHEALTHY = 9
    LOADING = 10
    SLEEPING = 11
    SATURATED = 12
    EFFORT_UNSUPPORTED = 13
    FACT_UNKNOWN = 14
    FACT_STALE = 15
    PAID_NOT_ALLOWED = 16
    SUBSCRIPTION_NOT_BLOCKED = 17


class RefusalReason(IntEnum):
    """Why an admission or a hop was refused (§4.1, §4.5, §8)."""

    CONTEXT_LENGTH_EXCEEDED = 1
    COMPACTION_REQUIRES_PIN = 2
    OPAQUE_STATE_REQUIRES_PIN = 3
    OPAQUE_STATE_MISMATCH = 4
    MODALITY_UNSUPPORTED = 5
    EFFORT_UNSUPPORTED = 6
    CAPACITY_UNKNOWN = 7
    NO_ELIGIBLE_CANDIDATE = 8
    PIN_MISSING = 9
    PIN_CORRUPT = 10
    PIN_RETIRED = 11
    PIN_POLICY_CHANGED = 12
    PIN_BINDING_CHANGED = 13
    PIN_PROVIDER_UNAVAILABLE = 14
    PIN_PAID_PREREQUISITE_LIFTED = 15
    FLOW_REQUIRED = 16
    FLOW_UNKNOWN = 17
    FLOW_TIMEOUT = 18
    FLOW_HOP_CLOSED = 19
    FLOW_DEPTH_EXCEEDED = 20
    FLOW_CYCLE_DETECTED = 21
    FLOW_FAN_OUT_EXCEEDED = 22
    FLOW_TOKENS_EXHAUSTED = 23
    FLOW_GUARD_UNAVAILABLE = 24


class HealthState(IntEnum):
    """The state of a local engine."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2
    LOADING = 3
    SLEEPING = 4


class AvailabilityState(IntEnum):
    """Whether an account or a model may be called at all."""

    UNKNOWN = 0
    AVAILABLE = 1
    BLOCKED = 2


class Freshness(IntEnum):
    """A fact's age against its limit and its own end (§3.1)."""

    FRESH = 1
    STALE = 2
    EXPIRED = 3


class ObservationResult(IntEnum):
    """What became of one observation."""

    ACCEPTED = 1
    SUPERSEDED = 2
    REFUSED = 3


class Health(NamedTuple):
    """An engine's health. `running` and `waiting` count requests; `kv_usage` is a fraction, 0 to 1. None: not told."""

    state: HealthState
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None


class Quota(NamedTuple):
    """What is left of one quota window, 0 to 100 percent. `scope` is "" for the account or the model itself."""

    window: str
    remaining_percent: float = 0.0
    unlimited: bool = False
    scope: str = ""


class Balance(NamedTuple):
    """Money left in one currency of one scope. `available` is the provider's own word, None when it gave none."""

    currency: str
    amount: Decimal = Decimal(0)
    unlimited: bool = False
    available: bool | None = None
    scope: str = ""


class Availability(NamedTuple):
    """AVAILABLE, or BLOCKED by a kind of blocker. AVAILABLE with a blocker clears that kind alone (§3.6)."""

    state: AvailabilityState
    blocker: Blocker = Blocker.NONE


Value: TypeAlias = Health | Quota | Balance | Availability


class Malformed(NamedTuple):
    """In place of a value that the wire carried and that is none: the field, and what is wrong with it."""

    reason: str


class Observation(NamedTuple):
    """One sample as a collector sent it, before any rule was applied.

    `observe_time` and `end_time` (a quota's or balance's reset, an availability's end) are wall-clock times by the
    collector; `age` is the time since capture by its monotonic clock; `ttl` how long it wants the sample to count.
    """

    provider: str
    model: str
    value: Value | Malformed
    observe_time: WallTime | None = None
    age: Nanos | None = None
    ttl: Nanos | None = None
    end_time: WallTime | None = None
    sequence: int = 0


class FactKey(NamedTuple):
    """What one fact is about (§3): of all observations with one key the newest counts.

    `part` is the quota's window, the balance's currency or the availability's blocker kind; `scope` the quota's or
    balance's.
    """

    provider: str
    model: str
    kind: str
    part: str = ""
    scope: str = ""


class Fact(NamedTuple):
    """The newest accepted observation of a key.

    `captured`, `stale_at` and `ends_at` are instants of the monotonic clock, so that a step of the wall clock changes
    nothing. `stale_at` is the last instant at which the fact is fresh; at `ends_at` it has ended (NEVER: no end).
    `ttl`, `observe_time` and `end_time` are kept as they were sent. `identity` and `collector` name who gave it.
    """

    key: FactKey
    value: Value
    captured: Instant
    stale_at: Instant
    ends_at: Instant = NEVER
    observe_time: WallTime | None = None
    end_time: WallTime | None = None
    ttl: Nanos | None = None
    sequence: int = 0
    collector: str = ""
    identity: str = ""


class Request(NamedTuple):
    """One admission as the policy sees it. `request_bytes` is the exact size of the caller's serialized request."""

    worker_id: str
    request_bytes: int
    reasoning_effort: str = ""
    compaction: bool = False
    provider_state: str = ""
    input_modalities: tuple[str, ...] = ()
    require_pin: bool = False
    explain: bool = False


class Pin(NamedTuple):
    """The stored, immutable binding of a worker (§5). `pin_id` is the keyed hash; the worker's id is not in here."""

    pin_id: bytes
    namespace: str
    route: str
    candidate: str
    provider: str
    model: str
    tier: Tier
    credential_source: str
    policy_fingerprint: str
    binding_fingerprint: str
    create_time: WallTime
    retired: bool = False


class CorruptPin(NamedTuple):
    """A row whose checksum does not hold: it is known that there was a pin, and nothing else (PIN_CORRUPT)."""

    pin_id: bytes


StoredPin: TypeAlias = Pin | CorruptPin


class Caller(NamedTuple):
    """Who calls, as far as policy cares: the identity's name, its namespace, roles and providers (§13).

    `providers` are those that a collector may speak for; None: any. `start_flows`: its own hop may begin a flow.
    """

    name: str = ""
    namespace: str = "default"
    roles: frozenset[str] = frozenset({"gateway"})
    providers: frozenset[str] | None = None
    start_flows: bool = True
