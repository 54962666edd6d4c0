"""Reads a source again and again: on time, on request, and less often when it asks for that."""

import asyncio
import logging
import random
from collections.abc import Callable

from tidegate_collectors.auth import SecretError
from tidegate_collectors.clock import Clock
from tidegate_collectors.facts import Health, Reading, Source, State, failure
from tidegate_collectors.poll import PollError
from tidegate_collectors.readers import Reader
from tidegate_collectors.station import Station

JITTER = 0.1
"""Share of the interval by which a reading comes early or late, so that collectors do not march in step."""
LOADING_INTERVAL = 2.0
"""Seconds between two looks at an engine that is loading its model."""
LONGEST_BACKOFF = 3600.0

_log = logging.getLogger("tidegate.collector")


class Poller:
    """One collector's loop. Readings never overlap: who asks while one is under way gets its outcome."""

    def __init__(
        self,
        reader: Reader,
        source: Source,
        station: Station,
        clock: Clock,
        *,
        every: float,
        least: float,
        patient: bool,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Set up.

        Args:
            reader: how it reads.
            source: whose answers they are.
            station: where they go.
            clock: its time.
            every: seconds between two readings.
            least: seconds between two readings at the least, refreshes included.
            patient: whether failures make it wait longer and longer; an engine on this machine is asked on.
            draw: random numbers from 0 to 1.
        """
        self._reader = reader
        self._source = source
        self._station = station
        self._clock = clock
        self._every = every
        self._least = least
        self._patient = patient
        self._draw = draw
        self._lock = asyncio.Lock()
        self._credential = ""
        self._last: Reading = failure("no reading yet")
        self._ended: float | None = None
        self._closed_until = 0.0
        self._failures = 0
        station.refresh = self.refresh

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read(refresh=False)
            await self._clock.sleep(self.pause())

    def pause(self) -> float:
        """Return the seconds until the next reading."""
        if any(isinstance(fact, Health) and fact.state is State.LOADING for fact in self._last.facts):
            return min(self._every, LOADING_INTERVAL)
        wait = self._every
        if self._failures and self._patient:
            wait = min(self._every * 2 ** min(self._failures - 1, 16), max(LONGEST_BACKOFF, self._every))
        jittered = wait * (1 + JITTER * (2 * self._draw() - 1))
        return max(jittered, self._least, self._closed_until - self._clock.monotonic())

    async def refresh(self, limit: float) -> bool:
        """Read now because the server asks; True when fresh facts went out within `limit` seconds."""
        now = self._clock.monotonic()
        if now < self._closed_until:
            return False
        if self._ended is not None and now - self._ended < self._least and self._last.ok:
            # Read a moment ago, and the source may not be asked more often: what it said is the newest there is.
            await self._station.resend()
            return self._station.facts > 0
        return await self.read(refresh=True)

    async def read(self, *, refresh: bool) -> bool:
        """Read once, or wait for the reading that is under way; True when it succeeded."""
        asked = self._clock.monotonic()
        under_way = self._lock.locked()
        async with self._lock:
            if under_way and self._ended is not None and self._ended >= asked:
                return self._last.ok
            reading = await self._attempt(refresh=refresh)
            await self._settle(reading)
            return reading.ok

    async def _attempt(self, *, refresh: bool) -> Reading:
        try:
            reading = await self._reader.read(refresh=refresh)
        except (PollError, SecretError) as error:
            reading = failure(str(error))
        except Exception as error:  # noqa: BLE001 - see below
            # A fault of this collector is this collector's error; the others go on. Its words could hold a payload.
            _log.error("%s: fault in the collector: %s", self._station.name, type(error).__name__)
            reading = failure(f"fault in the collector: {type(error).__name__}")
        credential = self._reader.credential
        if self._credential and credential != self._credential:
            _log.info("%s: another credential; what was said of the last one is taken back", self._station.name)
            await self._station.retract()
        self._credential = credential
        return reading

    async def _settle(self, reading: Reading) -> None:
        if reading.error != self._last.error and reading.error:
            _log.warning("%s: %s", self._station.name, reading.error)
        elif self._last.error and reading.ok:
            _log.info("%s: reads well", self._station.name)
        self._last = reading
        self._ended = self._clock.monotonic()
        self._failures = 0 if reading.ok else self._failures + 1
        if reading.retry_after is not None:
            # A source that goes on refusing is left alone twice as long each time: 5 min, up to 1 h.
            wait = reading.retry_after * 2 ** min(max(self._failures - 1, 0), 16)
            self._closed_until = self._ended + min(max(wait, self._every), max(LONGEST_BACKOFF, reading.retry_after))
        await self._station.publish(reading, self._source)
