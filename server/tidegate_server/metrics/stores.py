"""The ports, measured: each operation's time and its failures. What is read without I/O is passed through.

Every method is the port's; see `ports`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

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
    Fact,
    Instant,
    ObservationResult,
    Pin,
    RefusalReason,
    StoredPin,
    WallTime,
)
from tidegate_server.core.policy import FreshnessLimits
from tidegate_server.core.selection.model import Turn, Vector
from tidegate_server.errors import StoreUnavailable
from tidegate_server.metrics.measures import Latency, Measures
from tidegate_server.ports import (
    AgentEntry,
    AgentStore,
    Clock,
    DecisionFilter,
    DecisionPage,
    DecisionStore,
    FactFilter,
    FactStore,
    FlowStore,
    PinCensus,
    PinFilter,
    PinPage,
    PinStore,
)

T = TypeVar("T")

_GUARD_UNAVAILABLE = RefusalReason.FLOW_GUARD_UNAVAILABLE.name.lower()


class _Timing:
    """One operation, while it lasts."""

    __slots__ = ("_latency", "_now", "_started")

    def __init__(self, latency: Latency, now: Callable[[], Instant]) -> None:
        self._latency = latency
        self._now = now

    def __enter__(self) -> None:
        self._started = self._now()

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._latency.observe(self._now() - self._started)
        if kind is not None and issubclass(kind, StoreUnavailable):
            self._latency.errors += 1


class _Timer:
    """Times the operations of one store."""

    def __init__(self, name: str, measures: Measures, clock: Clock) -> None:
        self._name = name
        self._measures = measures
        self._now = clock.monotonic

    def __call__(self, operation: str) -> _Timing:
        return _Timing(self._measures.store(self._name, operation), self._now)


class MeasuredPins:
    """A PinStore; pins that it stored first are counted."""

    def __init__(self, store: PinStore, measures: Measures, clock: Clock) -> None:
        self._store = store
        self._timed = _Timer("pins", measures, clock)
        self._measures = measures

    async def get(self, pin_id: bytes) -> StoredPin | None:
        with self._timed("get"):
            return await self._store.get(pin_id)

    def peek(self, pin_id: bytes) -> Pin | None:
        return self._store.peek(pin_id)

    async def create(self, pin: Pin) -> tuple[StoredPin, bool]:
        with self._timed("create"):
            stored, is_ours = await self._store.create(pin)
        self._measures.pins_created += is_ours
        return stored, is_ours

    async def list(self, which: PinFilter, *, after: bytes, limit: int) -> PinPage:
        with self._timed("list"):
            return await self._store.list(which, after=after, limit=limit)

    async def retire(self, which: PinFilter, *, who: str, when: WallTime, why: str, dry_run: bool) -> int:
        with self._timed("retire"):
            return await self._store.retire(which, who=who, when=when, why=why, dry_run=dry_run)

    async def verify(self) -> PinCensus:
        with self._timed("verify"):
            return await self._store.verify()

    async def fingerprints(self) -> Mapping[tuple[str, str, str, str], int]:
        with self._timed("fingerprints"):
            return await self._store.fingerprints()

    def warnings(self) -> Sequence[str]:
        return self._store.warnings()

    def healthy(self) -> bool:
        return self._store.healthy()

    async def close(self) -> None:
        await self._store.close()


class MeasuredFacts:
    """A FactStore."""

    def __init__(self, store: FactStore, measures: Measures, clock: Clock) -> None:
        self._store = store
        self._timed = _Timer("facts", measures, clock)

    def groups(self) -> Mapping[tuple[str, str], FactGroup]:
        return self._store.groups()

    def facts(self, providers: frozenset[str]) -> Sequence[Fact]:
        return self._store.facts(providers)

    async def put(self, facts: Sequence[Fact], retract: FactFilter | None = None) -> Sequence[ObservationResult]:
        with self._timed("put"):
            return await self._store.put(facts, retract)

    def relimit(self, limits: FreshnessLimits) -> None:
        self._store.relimit(limits)

    def subscribe(self, changed: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        return self._store.subscribe(changed)

    def healthy(self) -> bool:
        return self._store.healthy()


class MeasuredFlows:
    """A FlowStore; refusals are counted by the limit that said no, whoever asked."""

    def __init__(self, store: FlowStore, measures: Measures, clock: Clock) -> None:
        self._store = store
        self._timed = _Timer("flows", measures, clock)
        self._measures = measures

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        with self._timed("enter"):
            answer = await self._judged(self._store.enter(ask))
        if isinstance(answer, Entered) and not answer.repeated:
            self._measures.hops_entered += 1
        return answer

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        with self._timed("would_enter"):
            asked = self._store.would_enter(ask, count=count)
            return await (self._judged(asked) if count else asked)  # what its flow does not count is not counted here

    async def check(self, ask: FlowAsk) -> Refused | None:
        with self._timed("check"):
            return await self._judged(self._store.check(ask))

    async def cancel(self, key: FlowKey, hop_id: str) -> None:
        with self._timed("cancel"):
            return await self._store.cancel(key, hop_id)

    async def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool) -> Exited | Missing:
        with self._timed("exit"):
            return await self._store.exit(key, hop_id, tokens, success)

    async def record(self, key: FlowKey, hop_id: str, tokens: int, request_id: str) -> Recorded | Missing | Misused:
        with self._timed("record"):
            return await self._store.record(key, hop_id, tokens, request_id)

    async def get(self, key: FlowKey) -> tuple[Flow, WallTime] | None:
        with self._timed("get"):
            return await self._store.get(key)

    async def list(
        self, namespace: str, *, open_only: bool, after: FlowPlace | None, limit: int
    ) -> tuple[FlowPage, WallTime]:
        with self._timed("list"):
            return await self._store.list(namespace, open_only=open_only, after=after, limit=limit)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self._store.subscribe(listener)

    async def sweep(self, limit: int) -> int:
        with self._timed("sweep"):
            return await self._store.sweep(limit)

    def healthy(self) -> bool:
        return self._store.healthy()

    async def close(self) -> None:
        await self._store.close()

    async def _judged(self, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except StoreUnavailable:
            self._measures.flow_refusals[_GUARD_UNAVAILABLE] += 1
            raise
        if isinstance(answer, Refused):
            self._measures.flow_refusals[answer.refusal.code] += 1
        return answer


class MeasuredAgents:
    """An AgentStore."""

    def __init__(self, store: AgentStore, measures: Measures, clock: Clock) -> None:
        self._store = store
        self._timed = _Timer("agents", measures, clock)

    async def get(self, namespace: str, agent_id: str) -> AgentEntry | None:
        with self._timed("get"):
            return await self._store.get(namespace, agent_id)

    async def named(self, namespace: str, name: str) -> Sequence[AgentEntry]:
        with self._timed("named"):
            return await self._store.named(namespace, name)

    async def entries(self, namespace: str, *, after: str, limit: int) -> Sequence[AgentEntry]:
        with self._timed("entries"):
            return await self._store.entries(namespace, after=after, limit=limit)

    async def put(self, namespace: str, entry: AgentEntry, *, replaces: AgentEntry | None) -> bool:
        with self._timed("put"):
            return await self._store.put(namespace, entry, replaces=replaces)

    async def remove(self, namespace: str, entry: AgentEntry) -> bool:
        with self._timed("remove"):
            return await self._store.remove(namespace, entry)

    async def append_turn(self, namespace: str, session: str, turn: Turn, *, keep: int, when: WallTime) -> None:
        with self._timed("append_turn"):
            return await self._store.append_turn(namespace, session, turn, keep=keep, when=when)

    async def turns(self, namespace: str, session: str, *, limit: int) -> Sequence[Turn]:
        with self._timed("turns"):
            return await self._store.turns(namespace, session, limit=limit)

    async def forget_sessions(self, before: WallTime) -> int:
        with self._timed("forget_sessions"):
            return await self._store.forget_sessions(before)

    async def vectors(self, space: str, digests: Sequence[bytes]) -> Mapping[bytes, Vector]:
        with self._timed("vectors"):
            return await self._store.vectors(space, digests)

    async def put_vectors(self, space: str, vectors: Mapping[bytes, Vector]) -> None:
        with self._timed("put_vectors"):
            return await self._store.put_vectors(space, vectors)

    def healthy(self) -> bool:
        return self._store.healthy()

    async def close(self) -> None:
        await self._store.close()


class MeasuredDecisions:
    """A DecisionStore."""

    def __init__(self, store: DecisionStore, measures: Measures, clock: Clock) -> None:
        self._store = store
        self._timed = _Timer("decisions", measures, clock)

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        with self._timed("write"):
            return await self._store.write(records)

    async def list(self, which: DecisionFilter, *, before: int, limit: int) -> DecisionPage:
        with self._timed("list"):
            return await self._store.list(which, before=before, limit=limit)

    async def totals(self, namespace: str) -> Sequence[Tally]:
        with self._timed("totals"):
            return await self._store.totals(namespace)

    async def purge(self, before: WallTime) -> int:
        with self._timed("purge"):
            return await self._store.purge(before)

    def healthy(self) -> bool:
        return self._store.healthy()

    async def close(self) -> None:
        await self._store.close()
