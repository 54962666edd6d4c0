"""The decision log's queue and its one writer (§10 of the contract): off the response path, bounded, counted.

`append` puts a decision, or a way to make its record, into a queue of fixed length and returns; what does not fit is
counted and gone. The writer takes all that waits, writes it as one batch, and keeps a batch that the store did not take
until it does: a store that hangs costs the decisions that the queue cannot hold, and no call a moment.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidegate_server.core.decision_record import DecisionRecord
from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import Clock, DecisionStore
from tidegate_server.usecases.deadlines import within

RecordMaker: TypeAlias = Callable[[], DecisionRecord]

_BATCH = 1_000
_GATHER: Nanos = SECOND // 20
_GATHERINGS = 8
"""How often a first decision waits that long for company: until there is a batch of it, for two fifths of the second in
which it must be written (§10) at most. Few large batches cost a busy server a fourth less than many small ones."""

_RETRY_AFTER: Nanos = SECOND // 4
_WRITE_LIMIT: Nanos = 10 * SECOND

_log = logging.getLogger(__name__)


class QueuedDecisionLog:
    """The port `DecisionLog`, for the event loop that it is started on. `dropped` counts what was lost."""

    def __init__(self, store: DecisionStore, clock: Clock, *, queue: int) -> None:
        self._store = store
        self._clock = clock
        self._limit = queue
        self._waiting: deque[DecisionRecord | RecordMaker] = deque()
        self._news = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        self.written = 0

    def append(self, record: DecisionRecord | RecordMaker) -> bool:
        """Take the decision, or count it as dropped. Neither blocks nor raises."""
        if self._closed or len(self._waiting) >= self._limit:
            self.dropped += 1
            return False
        self._waiting.append(record)
        self._news.set()
        return True

    @property
    def waiting(self) -> int:
        """How many decisions are not written yet."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to write."""
        self._writer = asyncio.ensure_future(self._write_for_ever())

    async def close(self, limit: Nanos = 5 * SECOND) -> None:
        """Take nothing more and write what is queued, for at most `limit`; the rest is counted as dropped."""
        self._closed = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await within(self._clock, limit, self._flush())
        if self._waiting:
            _log.warning("%d decisions were not written", len(self._waiting))
            self.dropped += len(self._waiting)
            self._waiting.clear()

    async def _write_for_ever(self) -> None:
        while True:
            await self._news.wait()
            for _ in range(_GATHERINGS):
                await self._clock.sleep(_GATHER)
                if len(self._waiting) >= min(_BATCH, self._limit // 2):
                    break
            await self._flush()

    async def _flush(self) -> None:
        """Write until nothing waits. What was written leaves the queue only then: a cancelled write loses nothing.

        A batch may so be written twice; the store keeps one of each id.
        """
        self._news.clear()
        while self._waiting:
            batch = [self._waiting[place] for place in range(min(_BATCH, len(self._waiting)))]
            records = await asyncio.to_thread(_made, batch)
            try:
                await within(self._clock, _WRITE_LIMIT, self._store.write(records))
            except (StoreUnavailable, TimeoutError):
                await self._clock.sleep(_RETRY_AFTER)
                continue
            for _ in batch:
                self._waiting.popleft()
            self.written += len(records)
            self.dropped += len(batch) - len(records)


def _made(batch: Sequence[DecisionRecord | RecordMaker]) -> list[DecisionRecord]:
    """The records; one that cannot be made is left out, and says so in the server's own log."""
    records = []
    for entry in batch:
        try:
            records.append(entry if isinstance(entry, DecisionRecord) else entry())
        except Exception:  # noqa: BLE001 - one faulty record must not end the log
            _log.exception("a decision's record could not be made")
    return records
