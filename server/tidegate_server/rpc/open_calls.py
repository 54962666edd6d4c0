"""The RPCs that are open, and how the server ends one: with a status, never by silence."""

import asyncio
from collections.abc import Callable
from typing import Any

from tidegate_server.core.model import NEVER, SECOND, Caller, Instant, Nanos
from tidegate_server.ports import Clock

SWEEP_EVERY: Nanos = SECOND
"""How late an RPC that is over its time may be ended."""


class CutOff(Exception):
    """Something that a call waited for was cancelled under it: a fault of ours, and the caller must not hang on it."""


class OpenCall:
    """One RPC. It may take until `until`; `caller` is known once a stream is served; `reason` is why we end it."""

    __slots__ = ("caller", "reason", "until")

    def __init__(self, until: Instant) -> None:
        self.until = until
        self.caller: Caller | None = None
        self.reason: Exception | None = None


class OpenCalls:
    """Every RPC that is being served, by its task.

    `deadline` is the server's own for each of them, however long the caller would wait. Without a clock there is none.
    An RPC whose message has not arrived is not here: gRPC tells nobody of it before, and it holds nothing but its place
    among the streams of its connection.
    """

    def __init__(self, clock: Clock | None = None, deadline: Nanos = 0) -> None:
        self._clock = clock
        self._deadline = deadline
        self._calls: dict[asyncio.Task[Any], OpenCall] = {}
        self.begun = 0

    @property
    def count(self) -> int:
        """How many there are now."""
        return len(self._calls)

    def begin(self) -> asyncio.Task[Any]:
        """The current task serves a new RPC, until its `end`."""
        task = _current()
        self._calls[task] = OpenCall(NEVER if self._clock is None else self._clock.monotonic() + self._deadline)
        self.begun += 1
        return task

    def end(self, task: asyncio.Task[Any]) -> None:
        """That RPC is over."""
        del self._calls[task]

    def unlimited(self, caller: Caller | None = None) -> None:
        """The current RPC has no deadline but its caller's. `caller`: it is a stream of that one's."""
        call = self._calls[_current()]
        call.until = NEVER
        call.caller = caller

    def end_streams(self, reason: Exception, whose: Callable[[Caller], bool] = lambda _: True) -> None:
        """End the streams of these callers; each tells its caller the reason."""
        self._end(lambda call: call.caller is not None and whose(call.caller), reason)

    def why_ended(self) -> Exception | None:
        """Why we ended the current RPC, if we did; it may say so then without being cancelled again."""
        task = _current()
        reason = self._calls[task].reason
        if reason is not None:
            task.uncancel()
        return reason

    async def tend(self) -> None:
        """End what is over its time, for ever; a task of the server."""
        while self._clock is not None:
            await self._clock.sleep(SWEEP_EVERY)
            self._end_late(self._clock.monotonic())

    def _end_late(self, now: Instant) -> None:
        self._end(lambda call: call.until < now, TimeoutError())

    def _end(self, which: Callable[[OpenCall], bool], reason: Exception) -> None:
        for task, call in self._calls.items():
            if call.reason is None and which(call):
                call.reason = reason
                task.cancel()


def _current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "an RPC is served by a task"
    return task


def is_cancelled() -> bool:
    """Whether the current task itself was cancelled, and not just something that it waited for."""
    return _current().cancelling() > 0
