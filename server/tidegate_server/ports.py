"""What the use cases need from the outside, in one place. Each store answers to one contract suite (tests/contract).

Every method of a store may raise `StoreUnavailable`, and raises no other error of its own. A call that was cancelled or
timed out has happened whole or not at all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidegate_server.core.model import (
    Blocker,
    Fact,
    Instant,
    Nanos,
    ObservationResult,
    Pin,
    StoredPin,
    WallTime,
)
from tidegate_server.core.policy import FreshnessLimits


class Clock(Protocol):
    """The time, injected. Ages and limits run on `monotonic`; `wall` is for what is shown and stored."""

    def monotonic(self) -> Instant:
        """Nanoseconds; never goes back, and stands for nothing outside this process."""
        ...

    def wall(self) -> WallTime:
        """Nanoseconds since the Unix epoch; may step."""
        ...


class PinFilter(NamedTuple):
    """Which pins an operator means; an empty field does not filter."""

    namespace: str = ""
    route: str = ""
    provider: str = ""
    pin_id: bytes = b""


class PinPage(NamedTuple):
    """A page of pins in the order of `pin_id`; `next_after` is where the next one starts, empty at the end."""

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
        """A page of the pins that match, retired ones too."""
        ...

    async def retire(self, which: PinFilter, *, who: str, when: WallTime, why: str, dry_run: bool) -> int:
        """Retire the matching pins that are not retired yet, with an audit line each; return how many."""
        ...

    async def verify(self) -> PinCensus:
        """Check every row."""
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


class FactGroup(Protocol):
    """All facts of one provider and model, arranged for the decision; see `core.facts.FactGroup`."""


class FactStore(Protocol):
    """The newest fact per key (§3). What `put` was given becomes visible whole."""

    def groups(self) -> Mapping[tuple[str, str], "FactGroup"]:
        """The facts as they stand, by provider and model ("" = the account). A local read: no I/O, no copy."""
        ...

    def facts(self, providers: frozenset[str]) -> Sequence[Fact]:
        """The stored facts of these providers (empty: of all), in the order of their keys."""
        ...

    async def put(self, facts: Sequence[Fact], retract: FactFilter | None = None) -> Sequence[ObservationResult]:
        """Take `retract` away, then put each fact unless a newer one of its key is stored; one result each."""
        ...

    async def clear(self, provider: str, model: str, blocker: Blocker) -> int:
        """Remove blocked rows (NONE: of every kind) of that provider and model; return how many."""
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


class Deadline(NamedTuple):
    """When the caller stops waiting, on the monotonic clock."""

    at: Instant

    def left(self, now: Instant) -> Nanos:
        """What is left of it, never negative."""
        return max(0, self.at - now)
