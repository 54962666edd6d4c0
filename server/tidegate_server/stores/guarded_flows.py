"""A FlowStore that answers in time or says that it cannot.

A wrapper of the port, for any store. A call that is late, fails or gives something that is no answer is
`StoreUnavailable`; after some in a row the store is left alone and calls fail at once, until one that was let through
(or one that was given up earlier) comes back well. Nothing is ever counted here instead.

A call that was given up, because it was late or because its own caller went away, may still happen. A hop that is
granted so is given back: nobody knows of it, so nobody would ever exit it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from types import NoneType
from typing import Any, TypeAlias, TypeVar, cast

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
from tidegate_server.core.model import SECOND, Instant, Nanos, WallTime
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock, FlowStore

Answer = TypeVar("Answer")
IsAnswer: TypeAlias = Callable[[object], bool]

ANSWER_WITHIN: Nanos = SECOND // 5
"""§8 gives 300 ms until the refusal is out; what is left is for the way there and back."""

PATIENCE = 5
"""Failures in a row after which calls are no longer passed on."""

PROBE_AFTER: Nanos = SECOND // 2
"""How long a store is left alone before one call is let through again."""

PROBE_LOST: Nanos = 5 * SECOND
"""After so long without an answer a probe counts as lost, and another may go."""

_log = logging.getLogger(__name__)


class GuardedFlowStore:
    """`inner`, within ANSWER_WITHIN a call."""

    def __init__(self, inner: FlowStore, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._failures = 0
        self._failing = False
        self._next_probe: Instant = 0
        self._given_up: set[asyncio.Task[Any]] = set()

    async def enter(self, ask: HopAsk) -> Entered | Refused | Misused:
        """See FlowStore."""

        def is_answer(answer: object) -> bool:
            ours = isinstance(answer, Entered) and (answer.hop.caller, answer.hop.target) == (ask.caller, ask.target)
            return ours or isinstance(answer, Refused | Misused)

        def undo(answer: object) -> None:
            if isinstance(answer, Entered):
                self._keep(asyncio.ensure_future(self._take_back(ask.key, answer.hop.hop_id)))

        return await self._ask(self._inner.enter(ask), is_answer, undo)

    async def would_enter(self, ask: HopAsk, *, count: bool) -> Refused | Misused | None:
        """See FlowStore."""
        return await self._ask(self._inner.would_enter(ask, count=count), _any_of(Refused, Misused, NoneType))

    async def check(self, ask: FlowAsk) -> Refused | None:
        """See FlowStore."""
        return await self._ask(self._inner.check(ask), _any_of(Refused, NoneType))

    async def cancel(self, key: FlowKey, hop_id: str) -> None:
        """See FlowStore."""
        await self._ask(self._inner.cancel(key, hop_id), _any_of(NoneType))

    async def exit(self, key: FlowKey, hop_id: str, tokens: int, success: bool) -> Exited | Missing:
        """See FlowStore."""
        return await self._ask(self._inner.exit(key, hop_id, tokens, success), _any_of(Exited, Missing))

    async def record(self, key: FlowKey, hop_id: str, tokens: int, request_id: str) -> Recorded | Missing | Misused:
        """See FlowStore."""
        return await self._ask(self._inner.record(key, hop_id, tokens, request_id), _any_of(Recorded, Missing, Misused))

    async def get(self, key: FlowKey) -> tuple[Flow, WallTime] | None:
        """See FlowStore."""
        return await self._ask(self._inner.get(key), _any_of(tuple, NoneType))

    async def list(
        self, namespace: str, *, open_only: bool, after: FlowPlace | None, limit: int
    ) -> tuple[FlowPage, WallTime]:
        """See FlowStore."""
        return await self._ask(
            self._inner.list(namespace, open_only=open_only, after=after, limit=limit), _any_of(tuple)
        )

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See FlowStore."""
        return self._inner.subscribe(listener)

    async def sweep(self, limit: int) -> int:
        """See FlowStore. Called now and then, it finds out by itself that a store works again."""
        return await self._ask(self._inner.sweep(limit), _any_of(int))

    def healthy(self) -> bool:
        """Whether calls are passed on, and the last ones worked."""
        return self._failures == 0 and self._inner.healthy()

    async def close(self) -> None:
        """Let calls that were given up end, within one answer's time, then close the store."""
        if self._given_up:
            await asyncio.wait(self._given_up, timeout=ANSWER_WITHIN / SECOND)
        for task in self._given_up:
            task.cancel()
        await self._inner.close()

    async def _ask(
        self,
        call: Coroutine[Any, Any, Answer],
        is_answer: IsAnswer,
        undo: Callable[[object], None] = lambda answer: None,
    ) -> Answer:
        if not self._may_ask():
            call.close()
            raise StoreUnavailable("flows")
        task = asyncio.ensure_future(call)
        try:
            await self._wait(task)
        except asyncio.CancelledError:
            self._give_up(task, is_answer, undo)
            raise
        if not task.done():
            self._failed("it did not answer in time")
            self._give_up(task, is_answer, undo)
            raise StoreUnavailable("flows")
        return cast("Answer", self._judge(task, is_answer))

    async def _wait(self, task: asyncio.Task[Any]) -> None:
        """Return when the call has ended or its time is over."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        task.add_done_callback(wake)
        call_off = self._clock.after(ANSWER_WITHIN, wake)
        try:
            await over
        finally:
            call_off()
            task.remove_done_callback(wake)

    def _judge(self, task: asyncio.Task[Any], is_answer: IsAnswer) -> object:
        """The answer of a call that has ended, if it is one."""
        fault = task.exception() if not task.cancelled() else None
        if task.cancelled() or fault is not None:
            self._failed(f"a call failed ({type(fault).__name__})")
            raise StoreUnavailable("flows") from fault
        answer = task.result()
        if not is_answer(answer):
            self._failed(f"it answered with {type(answer).__name__}")
            raise StoreUnavailable("flows")
        self._worked()
        return answer

    def _give_up(self, task: asyncio.Task[Any], is_answer: IsAnswer, undo: Callable[[object], None]) -> None:
        """Wait no longer, but see what becomes of it."""

        def ended(task: asyncio.Task[Any]) -> None:
            with contextlib.suppress(StoreUnavailable):  # counted already; there is nothing to undo
                undo(self._judge(task, is_answer))

        self._keep(task)
        task.add_done_callback(ended)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._given_up.add(task)
        task.add_done_callback(self._given_up.discard)

    async def _take_back(self, key: FlowKey, hop_id: str) -> None:
        try:
            await self._inner.cancel(key, hop_id)
        except Exception as fault:  # noqa: BLE001 - the hop stays charged; its flow's time frees it
            _log.warning("flows: a hop whose caller had gone could not be given back (%s)", type(fault).__name__)

    def _may_ask(self) -> bool:
        now = self._clock.monotonic()
        if not self._failing:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + PROBE_LOST  # one at a time; its end moves this
        return True

    def _worked(self) -> None:
        if self._failing:
            _log.warning("flows: the store answers again")
        self._failures, self._failing = 0, False

    def _failed(self, what: str) -> None:
        self._failures += 1
        self._next_probe = self._clock.monotonic() + PROBE_AFTER
        if self._failures >= PATIENCE and not self._failing:
            _log.error("flows: the store is unavailable: %s", what)
            self._failing = True


def _any_of(*kinds: type) -> IsAnswer:
    return lambda answer: isinstance(answer, kinds)
