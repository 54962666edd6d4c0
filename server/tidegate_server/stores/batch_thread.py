"""One thread that takes whatever waits, does it as one batch, and answers all of it at once.

The event loop never waits for a disk, and calls that arrive while one batch is being made durable share the next
fsync: the longer the disk takes, the more they share. Used for writing (one transaction a batch) and for cold reads.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple, Generic[Job, Answer]):
    job: Job
    future: asyncio.Future[Answer]


class BatchThread(Generic[Job, Answer]):
    """Runs `run(jobs)` on a thread of its own with every job that waits (at most `batch_limit`), in their order.

    `run` returns one answer per job, and an exception in an answer's place is raised to that caller alone. When `run`
    itself raises, the error is logged and each caller of the batch gets `failure()`: so a store's callers see nothing
    but its one error. `after` runs when a batch has been answered, `idle` when no job came for `idle_seconds`; neither
    may raise.

    A caller that is cancelled before its batch began leaves nothing; after that the batch happens all the same.

    Make it on the event loop that will use it.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Sequence[Job]], Sequence[Answer | Exception]],
        *,
        failure: Callable[[], Exception],
        after: Callable[[], None] = lambda: None,
        idle: Callable[[], None] = lambda: None,
        idle_seconds: float = 1.0,
        batch_limit: int = 512,
    ) -> None:
        self._run = run
        self._failure = failure
        self._after = after
        self._idle = idle
        self._idle_seconds = idle_seconds
        self._batch_limit = batch_limit
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._jobs: SimpleQueue[_Waiting[Job, Answer] | None] = SimpleQueue()
        self._closed = False
        # A daemon: a process that ends without `close` must end, and what a batch had not committed never happened.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> Answer:
        """Have the job done and wait for its answer. `failure()` after `close`, and in a forked child: no thread."""
        if self._closed or os.getpid() != self._process:
            raise self._failure()
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._jobs.put(_Waiting(job, future))
        return await future

    async def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        if not self._closed and os.getpid() == self._process:
            self._closed = True
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._take()
            if batch:
                self._answer(batch)
                self._after()
            elif open_:
                self._idle()

    def _take(self) -> tuple[list[_Waiting[Job, Answer]], bool]:
        """Everything that waits, without those who do not wait any more; False with it: this was the last."""
        batch: list[_Waiting[Job, Answer]] = []
        try:
            waiting = self._jobs.get(timeout=self._idle_seconds)
            while waiting is not None:
                if not waiting.future.cancelled():
                    batch.append(waiting)
                if len(batch) == self._batch_limit:
                    return batch, True
                waiting = self._jobs.get_nowait()
        except Empty:
            return batch, True
        return batch, False

    def _answer(self, batch: Sequence[_Waiting[Job, Answer]]) -> None:
        answers: Sequence[Answer | Exception]
        try:
            answers = self._run([waiting.job for waiting in batch])
        except Exception:  # noqa: BLE001 - a thread that dies leaves its callers waiting for ever
            _log.exception("%s: a batch of %d failed", self._thread.name, len(batch))
            answers = [self._failure() for _ in batch]
        try:
            self._loop.call_soon_threadsafe(_deliver, batch, answers)
        except RuntimeError:
            _log.warning("%s: the event loop is closed; %d answers have nobody left", self._thread.name, len(batch))


def _deliver(batch: Sequence[_Waiting[Job, Answer]], answers: Sequence[Answer | Exception]) -> None:
    for waiting, answer in zip(batch, answers, strict=True):
        if waiting.future.done():  # cancelled meanwhile; what was stored stays, and a retry finds it
            continue
        if isinstance(answer, Exception):
            waiting.future.set_exception(answer)
        else:
            waiting.future.set_result(answer)
