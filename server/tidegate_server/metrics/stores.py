"""The ports, measured: each operation's time and its failures. What is read without I/O is passed through."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from tidegate_server.core.flow.model import Entered, FlowAsk, HopAsk, Misused, Refused
from tidegate_server.core.model import Instant, Pin, RefusalReason, StoredPin
from tidegate_server.errors import StoreUnavailable
from tidegate_server.metrics.measures import Latency, Measures
from tidegate_server.ports import AgentStore, Clock, DecisionStore, FactStore, FlowStore, PinStore

P = ParamSpec("P")
T = TypeVar("T")

_GUARD_UNAVAILABLE = RefusalReason.FLOW_GUARD_UNAVAILABLE.name.lower()


def timed(
    call: Callable[P, Awaitable[T]], latency: Latency, now: Callable[[], Instant]
) -> Callable[P, Coroutine[Any, Any, T]]:
    """`call`, with its time observed and its failures counted."""

    async def measured(*args: P.args, **kwargs: P.kwargs) -> T:
        started = now()
        try:
            return await call(*args, **kwargs)
        except StoreUnavailable:
            latency.errors += 1
            raise
        finally:
            latency.observe(now() - started)

    return measured


class MeasuredPins:
    """A PinStore; pins that it stored first are counted."""

    def __init__(self, store: PinStore, measures: Measures, clock: Clock) -> None:
        now = clock.monotonic
        self._measures = measures
        self._create = timed(store.create, measures.store("pins", "create"), now)
        self.get = timed(store.get, measures.store("pins", "get"), now)
        self.list = timed(store.list, measures.store("pins", "list"), now)
        self.retire = timed(store.retire, measures.store("pins", "retire"), now)
        self.verify = timed(store.verify, measures.store("pins", "verify"), now)
        self.fingerprints = timed(store.fingerprints, measures.store("pins", "fingerprints"), now)
        self.peek = store.peek
        self.warnings = store.warnings
        self.healthy = store.healthy
        self.close = store.close

    async def create(self, pin: Pin) -> tuple[StoredPin, bool]:
        """See `ports.PinStore`."""
        stored, is_ours = await self._create(pin)
        self._measures.pins_created += is_ours
        return stored, is_ours


class MeasuredFacts:
    """A FactStore; only what may leave the process is timed."""

    def __init__(self, store: FactStore, measures: Measures, clock: Clock) -> None:
        self.put = timed(store.put, measures.store("facts", "put"), clock.monotonic)
        self.clear = timed(store.clear, measures.store("facts", "clear"), clock.monotonic)
        self.groups = store.groups
        self.facts = store.facts
        self.relimit = store.relimit
        self.subscribe = store.subscribe
        self.healthy = store.healthy


class MeasuredFlows:
    """A FlowStore; refusals are counted by the limit that said no, whoever asked."""

    def __init__(self, store: FlowStore, measures: Measures, clock: Clock) -> None:
        now = clock.monotonic
        self._measures = measures
        self._enter = timed(store.enter, measures.store("flows", "enter"), now)
        self._would_enter = timed(store.would_enter, measures.store("flows", "would_enter"), now)
        self._check = timed(store.check, measures.store("flows", "check"), now)
        self.cancel = timed(store.cancel, measures.store("flows", "cancel"), now)
        self.exit = timed(store.exit, measures.store("flows", "exit"), now)
        self.record = timed(store.record, measures.store("flows", "record"), now)
        self.get = timed(store.get, measures.store("flows", "get"), now)
        self.list = timed(store.list, measures.store("flows", "list"), now)
        self.sweep = timed(store.sweep, measures.store("flows", "sweep"), now)
        self.subscribe = store.subscribe
        self.healthy = store.healthy
        self.close = store.close

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        """See `ports.FlowStore`."""
        answer = await self._judged(self._enter(ask))
        if isinstance(answer, Entered) and not answer.repeated:
            self._measures.hops_entered += 1
        return answer

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        """See `ports.FlowStore`. What the flow does not count, for a dry run, is not counted here."""
        if not count:
            return await self._would_enter(ask, count=False)
        return await self._judged(self._would_enter(ask, count=True))

    async def check(self, ask: FlowAsk) -> Refused | None:
        """See `ports.FlowStore`."""
        return await self._judged(self._check(ask))

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
        now = clock.monotonic
        self.get = timed(store.get, measures.store("agents", "get"), now)
        self.named = timed(store.named, measures.store("agents", "named"), now)
        self.entries = timed(store.entries, measures.store("agents", "entries"), now)
        self.put = timed(store.put, measures.store("agents", "put"), now)
        self.remove = timed(store.remove, measures.store("agents", "remove"), now)
        self.append_turn = timed(store.append_turn, measures.store("agents", "append_turn"), now)
        self.turns = timed(store.turns, measures.store("agents", "turns"), now)
        self.forget_sessions = timed(store.forget_sessions, measures.store("agents", "forget_sessions"), now)
        self.vectors = timed(store.vectors, measures.store("agents", "vectors"), now)
        self.put_vectors = timed(store.put_vectors, measures.store("agents", "put_vectors"), now)
        self.healthy = store.healthy
        self.close = store.close


class MeasuredDecisions:
    """A DecisionStore."""

    def __init__(self, store: DecisionStore, measures: Measures, clock: Clock) -> None:
        now = clock.monotonic
        self.write = timed(store.write, measures.store("decisions", "write"), now)
        self.list = timed(store.list, measures.store("decisions", "list"), now)
        self.totals = timed(store.totals, measures.store("decisions", "totals"), now)
        self.purge = timed(store.purge, measures.store("decisions", "purge"), now)
        self.healthy = store.healthy
        self.close = store.close
