"""What the use cases need from the outside, in one place. Each store answers to one contract suite (tests/contract).

Every method of a store may raise `StoreUnavailable`, and raises no other error of its own. A call that was cancelled or
timed out has happened whole or not at all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidegate_server.core.decision_record import DecisionRecord, Tally
from tidegate_server.core.facts import FactGroup
from tidegate_server.core.flow.model import (
    Entered,
    Exited,
    Flow,
    FlowAsk,
    FlowKey,
    FlowPage,
    FlowPlace,
    HopAsk,
    Listener,
    Missing,
    Misused,
    Recorded,
    Refused,
)
from tidegate_server.core.model import (
    CorruptPin,
    Fact,
    Instant,
    Nanos,
    ObservationResult,
    Pin,
    StoredPin,
    WallTime,
)
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.core.selection.choice import Ask
from tidegate_server.core.selection.model import Agent, Turn, Usage, Vector


class Clock(Protocol):
    """The time, injected. Ages and limits run on `monotonic`; `wall` is for what is shown and stored."""

    def monotonic(self) -> Instant:
        """Nanoseconds; never goes back, and stands for nothing outside this process."""
        ...

    def wall(self) -> WallTime:
        """Nanoseconds since the Unix epoch; may step."""
        ...

    async def sleep(self, length: Nanos) -> None:
        """Return when that much time has passed on the monotonic clock."""
        ...

    def after(self, length: Nanos, do: Callable[[], object]) -> Callable[[], object]:
        """Call `do` on the event loop when that much time has passed; return the way to call it off. Costs no task."""
        ...


class PinFilter(NamedTuple):
    """Which pins an operator means; an empty field does not filter."""

    namespace: str = ""
    route: str = ""
    provider: str = ""
    pin_id: bytes = b""

    def matches(self, pin: StoredPin) -> bool:
        """Whether it is meant. Of a corrupt pin nothing but the id is known: route and provider rule it out."""
        if self.pin_id and self.pin_id != pin.pin_id:
            return False
        if isinstance(pin, CorruptPin):
            return not (self.route or self.provider)
        return (
            self.namespace in ("", pin.namespace)
            and self.route in ("", pin.route)
            and self.provider in ("", pin.provider)
        )


class PinPage(NamedTuple):
    """A page of pins in the order of `pin_id`; `next_after` is where the next one starts, empty at the end.

    A page may hold fewer than were asked for, even none, and not be the last: a rare match costs several short reads
    and not one long one.
    """

    pins: tuple[StoredPin, ...]
    next_after: bytes


class PinCensus(NamedTuple):
    """How many rows were checked, and which of them do not hold."""

    checked: int
    corrupt: tuple[bytes, ...]


class PinStore(Protocol):
    """Pins: durable, immutable, first writer wins (§5).

    `get` is None only when the store knows that there is no pin. A row that fails its checksum is a `CorruptPin`.
    """

    async def get(self, pin_id: bytes) -> StoredPin | None:
        """The pin, read; an answer from a cache is allowed, for a pin never changes (only its retirement does)."""
        ...

    def peek(self, pin_id: bytes) -> Pin | None:
        """The pin if it is at hand without I/O; None says nothing about whether there is one."""
        ...

    async def create(self, pin: Pin) -> tuple[StoredPin, bool]:
        """Store `pin` unless its id is taken; return what is stored now and whether it is ours. Durable on return."""
        ...

    async def list(self, which: PinFilter, *, after: bytes, limit: int) -> PinPage:
        """A page of at most `limit` of the pins that match and whose id is greater than `after`, retired ones too."""
        ...

    async def retire(self, which: PinFilter, *, who: str, when: WallTime, why: str, dry_run: bool) -> int:
        """Retire the matching pins that are not retired yet, with an audit line each; return how many (there would be).

        Each pin's tombstone and audit line are one step; many pins are many steps, so that new pins need not wait for
        them. Cut short, the same call does the rest. Corrupt pins stay as they are.
        """
        ...

    async def verify(self) -> PinCensus:
        """Check every pin as `get` would. It reads all of them; other calls go on meanwhile."""
        ...

    async def fingerprints(self) -> Mapping[tuple[str, str, str, str], int]:
        """How many pins not retired stand under each (route, candidate, policy fingerprint, binding fingerprint)."""
        ...

    def warnings(self) -> Sequence[str]:
        """What an operator should know: corrupt rows met so far, a disk that refused. Empty: all is well."""
        ...

    def healthy(self) -> bool:
        """Whether the last operation of each kind worked."""
        ...

    async def close(self) -> None:
        """Finish what is accepted, then let go of the files."""
        ...


class FactFilter(NamedTuple):
    """Which facts a retraction takes away: those that this collector gave. An empty field does not filter."""

    identity: str
    collector: str
    providers: frozenset[str] = frozenset()
    window: str = ""
    scope: str = ""


class FactStore(Protocol):
    """The newest fact per key (§3). What `put` was given becomes visible whole."""

    def groups(self) -> Mapping[tuple[str, str], FactGroup]:
        """The facts as they stand, by provider and model ("" = the account). A local read: no I/O, no copy."""
        ...

    def facts(self, providers: frozenset[str]) -> Sequence[Fact]:
        """The stored facts of these providers (empty: of all), in the order of their keys."""
        ...

    async def put(self, facts: Sequence[Fact], retract: FactFilter | None = None) -> Sequence[ObservationResult]:
        """Take `retract` away, then put each fact unless a newer one of its key is stored; one result each."""
        ...

    def relimit(self, limits: FreshnessLimits) -> None:
        """Apply other upper limits to what is stored."""
        ...

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call `changed` with the providers touched, after each change; return the way to end that."""
        ...

    def healthy(self) -> bool:
        """Whether the facts are known to be whole: a replica that missed a change is not."""
        ...


class Peers(Protocol):
    """Messages to all other replicas, in the order in which each of them speaks. Any of them may be lost."""

    def send(self, message: bytes) -> None:
        """Say it to all that listen; never blocks, never raises."""
        ...

    def listen(self, heard: Callable[[bytes], None]) -> None:
        """Call `heard` with each message, one's own included. It must not block or raise."""
        ...


class FlowStore(Protocol):
    """The state of flows (§8). Each method is one atomic step, whoever else calls at the same time.

    A store has a clock of its own (see `core.flow.model`); what it remembers is kept until `Flow.keep_until`, and is as
    good as gone after that. A refusal is an answer. What cannot be read, or is not what was written, is
    `StoreUnavailable`: never an empty flow.
    """

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        """Check and charge a hop. A refused one charges and prolongs nothing. Durable on return."""
        ...

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        """What `enter` would say against the hop, without the charge; with `count` a refusal counts for the flow."""
        ...

    async def check(self, ask: FlowAsk) -> Refused | None:
        """What stands against an inference request of this hop."""
        ...

    async def cancel(self, key: FlowKey, hop_id: str) -> None:
        """Give a granted hop back that was never used. It goes when all who were granted it have given it back."""
        ...

    async def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool) -> Exited | Missing:
        """Close a hop, once, and settle its reservation."""
        ...

    async def record(self, key: FlowKey, hop_id: str, tokens: int, request_id: str) -> Recorded | Missing | Misused:
        """Add tokens to a hop. A repeat of a `request_id` that is not empty counts once."""
        ...

    async def get(self, key: FlowKey) -> tuple[Flow, WallTime] | None:
        """A copy of one flow, and the store's time."""
        ...

    async def list(
        self, namespace: str, *, open_only: bool, after: FlowPlace | None, limit: int
    ) -> tuple[FlowPage, WallTime]:
        """A page of copies, newest first, and the store's time. A page may be shorter than `limit`."""
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each durable change, in the order of the changes; return the way to end that.

        It is called on the event loop and must not block or raise.
        """
        ...

    async def sweep(self, limit: int) -> int:
        """Forget at most `limit` flows whose state is over; return how many. Proves that the store can write, too."""
        ...

    def healthy(self) -> bool:
        """Whether the last operation worked."""
        ...

    async def close(self) -> None:
        """Finish what is accepted, then let go of files and connections."""
        ...


class Deadline(NamedTuple):
    """When the caller stops waiting, on the monotonic clock."""

    at: Instant

    def left(self, now: Instant) -> Nanos:
        """What is left of it, never negative."""
        return max(0, self.at - now)


class AgentEntry(NamedTuple):
    """A registered agent, and the identity that registered it."""

    agent: Agent
    registrar: str


class AgentStore(Protocol):
    """The registry of agents, the turns of sessions, and the embeddings of what agents say (§9).

    Agents are kept per namespace under their id. Sessions are known by their keyed hash alone. Vectors are kept by the
    space that they live in (which names endpoint and model) and the digest of the embedded text, for all namespaces.
    """

    async def get(self, namespace: str, agent_id: str) -> AgentEntry | None:
        """The entry of this id; None when there is none."""
        ...

    async def named(self, namespace: str, name: str) -> Sequence[AgentEntry]:
        """All entries of this exact name, in the order of their ids."""
        ...

    async def entries(self, namespace: str, *, after: str, limit: int) -> Sequence[AgentEntry]:
        """At most `limit` entries whose ids come after `after` ("": the first ones), in the order of their ids."""
        ...

    async def put(self, namespace: str, entry: AgentEntry, *, replaces: AgentEntry | None) -> bool:
        """Store `entry` if its id is now held by exactly `replaces` (None: by nobody); whether it was stored."""
        ...

    async def remove(self, namespace: str, entry: AgentEntry) -> bool:
        """Remove `entry` if it is stored exactly so; whether it was removed."""
        ...

    async def append_turn(self, namespace: str, session: str, turn: Turn, *, keep: int, when: WallTime) -> None:
        """Put `turn` at the session's end and keep the newest `keep` of its turns, in one step."""
        ...

    async def turns(self, namespace: str, session: str, *, limit: int) -> Sequence[Turn]:
        """The session's newest `limit` turns, the oldest of them first; none when the session is unknown."""
        ...

    async def forget_sessions(self, before: WallTime) -> int:
        """Drop the sessions whose newest turn is older than `before`; return how many."""
        ...

    async def vectors(self, space: str, digests: Sequence[bytes]) -> Mapping[bytes, Vector]:
        """The stored vectors of these digests in this space; what is not stored is left out."""
        ...

    async def put_vectors(self, space: str, vectors: Mapping[bytes, Vector]) -> None:
        """Store vectors, each in the place of an older one of its space and digest (32-bit floats)."""
        ...

    def healthy(self) -> bool:
        """Whether the last operation worked."""
        ...

    async def close(self) -> None:
        """Finish what is accepted, then let go of the files."""
        ...


class Embedded(NamedTuple):
    """The answer of an embedder: one vector a text, None for a text that it gave no usable vector for.

    `space` tells which vectors may be compared: those of the same endpoint and the same model, as the provider reported
    it. (Vectors of another length never compare, whatever the space.)
    """

    space: str
    vectors: tuple[Vector | None, ...]


class Embedder(Protocol):
    """Makes vectors of texts. Raises `ProviderFailed` when nothing could be had; knows no deadline: it is cancelled."""

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """The vectors of `texts`, in their order, in as many calls as the provider's limit asks for."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


class Answer(NamedTuple):
    """A chat model's whole answer, unread, and what it cost."""

    content: str
    usage: Usage


class Selector(Protocol):
    """Asks a chat model. Raises `ProviderFailed` for an error, a refusal or no content; cancelled at the deadline."""

    @property
    def model(self) -> str:
        """The model's name, as prices and logs know it."""
        ...

    async def answer(self, ask: Ask) -> Answer:
        """The model's answer to `ask`, for `core.selection.choice.parse` to judge."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class DecisionLog(Protocol):
    """Where use cases leave their decisions, off the response path (§10)."""

    def append(self, record: DecisionRecord | Callable[[], DecisionRecord]) -> bool:
        """Take a record, or a function that makes it, to be written within a second. Never blocks, never raises.

        A function runs on a thread later, so what it reads must be immutable. False: dropped, and counted.
        """
        ...


class DecisionFilter(NamedTuple):
    """Which decisions are meant; an empty field does not filter. `session` is a `session_hash`."""

    namespace: str
    session: str = ""
    subject: str = ""
    kind: str = ""
    decision_id: str = ""


class DecisionPage(NamedTuple):
    """A page of decisions, the newest first; `next_before` is where the next one starts, 0 at the end."""

    records: tuple[DecisionRecord, ...]
    next_before: int


class DecisionStore(Protocol):
    """The written log: records in the order of writing, and the sums of their tallies by day."""

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        """Store records and add their tallies, durably and in one step; one whose id is stored changes nothing."""
        ...

    async def list(self, which: DecisionFilter, *, before: int, limit: int) -> DecisionPage:
        """A page of the matching records older than `before` (0: from the newest). Their tallies are not kept."""
        ...

    async def totals(self, namespace: str) -> Sequence[Tally]:
        """The sums of all tallies that are kept, by group, key and figure, in this order."""
        ...

    async def purge(self, before: WallTime) -> int:
        """Drop the records of decisions before `before` (return how many), and the sums of whole UTC days before it."""
        ...

    def healthy(self) -> bool:
        """Whether the last operation worked."""
        ...

    async def close(self) -> None:
        """Finish what is accepted, then let go of the files."""
        ...
