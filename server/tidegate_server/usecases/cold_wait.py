"""The cold wait: ask the collectors and wait a little before a refusal, or before money is bound (§4.1 step 8)."""

import asyncio
from collections.abc import Callable

from tidegate_server.core.decide import Decision
from tidegate_server.core.model import Instant, Nanos
from tidegate_server.ports import Clock
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.feeds import Feeds


class WaitBudget:
    """Until when one call may wait: the caller's own deadline, and `coldWait` from its first wait on.

    The items of one batch share a budget, so that a batch waits once.
    """

    def __init__(self, deadline: Instant) -> None:
        self._deadline = deadline
        self._until: Instant | None = None

    def until(self, now: Instant, cold_wait: Nanos) -> Instant:
        """The end of the wait, fixed when it is first asked for."""
        if self._until is None:
            self._until = min(now + cold_wait, self._deadline)
        return self._until


class ColdWait:
    """Holds a bounded number of callers back until a decision no longer rests on doubt."""

    def __init__(self, changes: Changes, feeds: Feeds, clock: Clock, *, max_waiters: int) -> None:
        self._changes = changes
        self._feeds = feeds
        self._clock = clock
        self._max_waiters = max_waiters
        self._started = clock.monotonic()
        self.waiting = 0
        self.waits = 0
        self.shed = 0

    async def settle(
        self, decide: Callable[[], Decision], first: Decision, budget: WaitBudget, cold_wait: Nanos
    ) -> Decision:
        """Decide again whenever something changed, until no doubt is left or waiting cannot help any more.

        Above the bound on waiters the first decision stands at once.
        """
        if self.waiting >= self._max_waiters:
            self.shed += 1
            return first
        self.waiting += 1
        self.waits += 1
        try:
            return await self._settle(decide, first, budget, cold_wait)
        finally:
            self.waiting -= 1

    async def _settle(
        self, decide: Callable[[], Decision], decision: Decision, budget: WaitBudget, cold_wait: Nanos
    ) -> Decision:
        asked: set[str] = set()
        while decision.wait_for:
            now = self._clock.monotonic()
            until = budget.until(now, cold_wait)
            starting_until = self._started + cold_wait
            is_starting = now <= starting_until
            for provider in set(decision.wait_for) - asked:
                self._feeds.ask(provider, until, now)
                asked.add(provider)
            hopeful = [p for p in decision.wait_for if self._may_come(p, is_starting=is_starting)]
            if not hopeful or now >= until:
                return decision
            with self._changes.expect(decision.wait_for) as news:
                await self._first_of(news.future, (min(until, starting_until + 1) if is_starting else until) - now)
            decision = decide()
        return decision

    def _may_come(self, provider: str, *, is_starting: bool) -> bool:
        """Whether facts of that provider may still come: a collector covers it, or may be about to connect."""
        if self._feeds.has_failed(provider):
            return False
        return is_starting or self._feeds.covers(provider)

    async def _first_of(self, news: asyncio.Future[None], length: Nanos) -> None:
        timer = asyncio.ensure_future(self._clock.sleep(length))
        try:
            await asyncio.wait((news, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
