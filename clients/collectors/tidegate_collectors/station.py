"""One collector's line to the server: opened again for ever, with the newest facts said first (§6 of the contract)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from tidegate import AsyncClient, CredentialError, Feed, RetryPolicy, TidegateError, Unavailable
from tidegate.v1 import admission_pb2, types_pb2

from tidegate_collectors.clock import Clock
from tidegate_collectors.facts import Reading, Source
from tidegate_collectors.ledger import Ledger, Update
from tidegate_collectors.meters import Meters
from tidegate_collectors.wire import duration

HEARTBEAT = 10.0
WELCOME_WITHIN = 10.0
SETTLED = 5.0
"""Seconds after which a feed that ends again was a good one, and the next attempt is the first."""
BATCH = 500
"""Observations in a batch: well below 1 000 and 1 MiB."""

RECONNECT = RetryPolicy(first=0.1, longest=1.0)
"""A server that restarts is found again within about a second."""
REJECTED = RetryPolicy(first=1.0, longest=30.0)
"""What an operator has to mend (a token, a provider that is not allowed) is not tried every second."""

_log = logging.getLogger("tidegate.collector")

Refresh = Callable[[float], Awaitable[bool]]
"""Reads anew within so many seconds; False: it could not."""


class Station:
    """Keeps what one collector said, and its feed open."""

    def __init__(
        self, name: str, hello: admission_pb2.Hello, client: AsyncClient, clock: Clock, meters: Meters
    ) -> None:
        self.name = name
        self.refresh: Refresh | None = None
        self._hello = hello
        self._client = client
        self._clock = clock
        self._meters = meters
        self._ledger = Ledger()
        self._feed: Feed | None = None
        self._sending = asyncio.Lock()
        self._sequence = 0
        self._trouble = ""
        self._complaints: set[str] = set()
        meters.register(name)

    # --- what the collector says --------------------------------------------------------------------------------------

    async def publish(self, reading: Reading, source: Source) -> None:
        """Take a reading and tell the server of it, now or as soon as it can be reached."""
        now = self._clock.now()
        update = self._ledger.take(reading, source, self._clock.monotonic(), now)
        self._meters.reading(self.name, reading, len(self._ledger), now.timestamp())
        await self._tell(update)

    async def retract(self) -> None:
        """Take everything back: it was said of another credential's account."""
        self._ledger.forget()
        await self._tell(Update(retractions=[admission_pb2.Retract(providers=self._hello.providers)]))

    async def resend(self) -> None:
        """Say the newest facts again, with their true age."""
        await self._tell(Update(self._ledger.newest(self._clock.monotonic(), self._clock.now())))

    @property
    def facts(self) -> int:
        """How many facts stand."""
        return len(self._ledger)

    # --- the feed -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the feed open until cancelled."""
        attempt = 0
        while True:
            opened = self._clock.monotonic()
            try:
                await self._session()
                error: Exception = Unavailable("the server ended the feed")
            except (TidegateError, CredentialError, TimeoutError) as caught:
                error = caught
            finally:
                self._feed = None
                self._meters.connected(self.name, False)
            attempt = 1 if self._clock.monotonic() - opened > SETTLED else attempt + 1
            policy = RECONNECT if isinstance(error, Unavailable | TimeoutError) else REJECTED
            self._report(error)
            await self._clock.sleep(policy.delay(attempt, error))

    async def _session(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        async with self._client.capacity_feed(self._hello) as feed:
            messages = aiter(feed)
            await self._welcomed(messages)
            self._feed = feed
            self._trouble = ""
            self._meters.connected(self.name, True)
            try:
                await self.resend()
                tasks.add(asyncio.create_task(self._beat(feed)))
                async for message in messages:
                    if message.HasField("ack"):
                        self._acknowledged(message.ack)
                    elif message.HasField("refresh"):
                        task = asyncio.create_task(self._answer(feed, message.refresh))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _welcomed(self, messages: AsyncIterator[admission_pb2.CapacityFeedResponse]) -> None:
        async with asyncio.timeout(WELCOME_WITHIN):
            async for message in messages:
                if message.HasField("welcome"):
                    return
        raise Unavailable("the server ended the feed before its welcome")

    async def _beat(self, feed: Feed) -> None:
        while True:
            await self._clock.sleep(HEARTBEAT)
            try:
                async with self._sending:
                    await feed.heartbeat()
            except TidegateError:
                return

    async def _answer(self, feed: Feed, refresh: admission_pb2.Refresh) -> None:
        """Read anew and say what came of it; what failed, nobody need wait for."""
        limit = refresh.deadline.ToTimedelta().total_seconds() if refresh.HasField("deadline") else WELCOME_WITHIN
        try:
            async with asyncio.timeout(limit):
                good = self.refresh is not None and await self.refresh(limit)
        except TimeoutError:
            good = False
        mine = [name for name in self._hello.providers if not refresh.providers or name in refresh.providers]
        try:
            async with self._sending:
                await feed.refreshed(refresh.refresh_id, [] if good else mine)
        except TidegateError:
            # The stream is at its end; its reader finds out, and why.
            return

    async def _tell(self, update: Update) -> None:
        """Send an update. Without a feed nothing is lost: the ledger is said again when there is one."""
        feed = self._feed
        if feed is None:
            return
        try:
            async with self._sending:
                for retract in update.retractions:
                    await feed.retract(retract)
                for start in range(0, len(update.observations), BATCH):
                    self._sequence += 1
                    await feed.send(self._sequence, update.observations[start : start + BATCH])
        except TidegateError:
            return

    def _acknowledged(self, ack: admission_pb2.Ack) -> None:
        for result in ack.results:
            word = types_pb2.ObservationResult.Name(result.result) if result.result < 4 else "UNKNOWN"
            self._meters.items(self.name, word.removeprefix("OBSERVATION_RESULT_").lower())
            if result.result == types_pb2.OBSERVATION_RESULT_REFUSED and result.reason not in self._complaints:
                self._complaints.add(result.reason)
                _log.warning("%s: the server refuses an observation: %s", self.name, result.reason)

    def _report(self, error: Exception) -> None:
        """Log a trouble once, until it is over or another."""
        words = str(error) or type(error).__name__
        if words != self._trouble:
            self._trouble = words
            _log.warning("%s: feed: %s", self.name, words)


def hello(
    collector_id: str, provider: str, siblings: tuple[str, ...], *, can_refresh: bool, interval: float | None
) -> admission_pb2.Hello:
    """Return the first message of a collector's feed."""
    return admission_pb2.Hello(
        collector_id=collector_id,
        providers=dict.fromkeys((provider, *siblings)),
        can_refresh=can_refresh,
        interval=duration(interval) if interval is not None else None,
    )
