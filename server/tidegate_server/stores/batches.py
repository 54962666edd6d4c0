"""Calls that wait at the same moment go out together: one statement, one pipeline, one round trip for all of them.

What comes while a batch is under way makes up the next one, so the slower a store gets the more its calls share.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class _Waiting(NamedTuple, Generic[Job, Answer]):
    job: Job
    future: asyncio.Future[Answer]


class Batches(Generic[Job, Answer]):
    """Hands what waits to `do`, at most `limit` at a time and at most `in_flight` batches at once.

    `do` returns one answer a job, in their order; an exception in an answer's place is raised to that caller alone, one
    that it raises itself to all of them. It bounds its own time. A caller waits `seconds` at the most, then gets
    `failure()`; whoever gave up before the batch began leaves nothing.
    """

    def __init__(
        self,
        do: Callable[[Sequence[Job]], Awaitable[Sequence[Answer | Exception]]],
        *,
        failure: Callable[[], Exception],
        seconds: float,
        limit: int = 256,
        in_flight: int = 2,
    ) -> None:
        self._do = do
        self._failure = failure
        self._seconds = seconds
        self._limit = limit
        self._free = in_flight
        self._waiting: deque[_Waiting[Job, Answer]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._closed = False

    async def submit(self, job: Job) -> Answer:
        """The answer to `job`."""
        if self._closed:
            raise self._failure()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(_Waiting(job, future))
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        try:
            await asyncio.wait((future,), timeout=self._seconds)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not future.done():
            future.cancel()
            raise self._failure()
        return future.result()

    async def close(self) -> None:
        """Finish what is under way; take nothing new."""
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)

    def _flush(self) -> None:
        self._scheduled = False
        while self._free and (batch := self._take()):
            self._free -= 1
            task = asyncio.ensure_future(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _take(self) -> list[_Waiting[Job, Answer]]:
        batch: list[_Waiting[Job, Answer]] = []
        while self._waiting and len(batch) < self._limit:
            waiting = self._waiting.popleft()
            if not waiting.future.done():
                batch.append(waiting)
        return batch

    async def _run(self, batch: Sequence[_Waiting[Job, Answer]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._do([waiting.job for waiting in batch])
        except Exception as error:  # noqa: BLE001 - handed to every caller of the batch
            answers = [error for _ in batch]
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.future.done():  # it gave up; what was done stays done, and a retry finds it
                continue
            if isinstance(answer, Exception):
                waiting.future.set_exception(answer)
            else:
                waiting.future.set_result(answer)
        self._free += 1
        self._flush()
