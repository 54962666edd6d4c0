"""Decisions as they happen: those that this process has written to the log, for any number of watchers.

A wrapper of the port `DecisionStore`: who writes does not know that somebody watches. Another process's decisions are
in the log, and not in here.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from tidegate_server.core.decision_record import DecisionRecord
from tidegate_server.core.model import Caller
from tidegate_server.errors import Overloaded
from tidegate_server.ports import DecisionStore

WATCH_QUEUE = 1_000
MAX_WATCHERS = 100


class WatchedDecisions:
    """A DecisionStore whose written records are told to watchers. A slow one loses the oldest, and slows nobody."""

    def __init__(self, store: DecisionStore) -> None:
        self._write = store.write
        self.list = store.list
        self.totals = store.totals
        self.purge = store.purge
        self.healthy = store.healthy
        self.close = store.close
        self._watchers: set[_Mailbox] = set()

    async def write(self, records: Sequence[DecisionRecord]) -> None:
        """See `ports.DecisionStore`."""
        await self._write(records)
        for mailbox in self._watchers:
            mailbox.put(records)

    async def watch(self, caller: Caller) -> AsyncGenerator[DecisionRecord, None]:
        """The decisions of the caller's namespace from now on. Raises Overloaded."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise Overloaded("watchers")
        mailbox = _Mailbox(caller.namespace)
        self._watchers.add(mailbox)
        try:
            while True:
                yield await mailbox.take()
        finally:
            self._watchers.discard(mailbox)


class _Mailbox:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._records: deque[DecisionRecord] = deque(maxlen=WATCH_QUEUE)
        self._filled = asyncio.Event()

    def put(self, records: Sequence[DecisionRecord]) -> None:
        self._records.extend(record for record in records if record.namespace == self._namespace)
        if self._records:
            self._filled.set()

    async def take(self) -> DecisionRecord:
        while not self._records:
            self._filled.clear()
            await self._filled.wait()
        return self._records.popleft()
