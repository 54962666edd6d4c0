"""The one place where the client repeats a call: on UNAVAILABLE only, and never past the call's deadline.

A repeated Admit finds the pin that the first attempt stored, and a repeated EnterHop the hop of its `request_id`, so
nothing is bound or charged twice (§4.1 and §8 of the contract).
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception_type

from tidegate.errors import Unavailable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a call that found nobody is repeated.

    The wait before attempt n+1 is the server's RetryInfo, if it gave one, plus a random part of
    min(`longest`, `first` × 2ⁿ) seconds, so that callers who failed together do not come back together. No wait begins
    that would end past the deadline. `clock` (seconds, monotonic) and `draw` (0 to 1) are there for tests.
    """

    attempts: int = 5
    first: float = 0.1
    longest: float = 2.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    draw: Callable[[], float] = field(default=random.random, repr=False)

    def delay(self, attempt: int, error: BaseException | None) -> float:
        """Return the seconds to wait after attempt number `attempt` (1, 2, …) failed with `error`."""
        asked = error.retry_delay if isinstance(error, Unavailable) else None
        backoff: float = min(self.longest, self.first * 2 ** (attempt - 1))
        return (asked.total_seconds() if asked else 0.0) + backoff * self.draw()

    def sync(self, deadline: float) -> Retrying:
        """Return the tenacity loop of a blocking call that ends at `deadline` on this policy's clock."""
        return Retrying(
            retry=retry_if_exception_type(Unavailable), wait=self._wait, stop=self._stop(deadline), reraise=True
        )

    def asyncio(self, deadline: float) -> AsyncRetrying:
        """Return the same loop for an asyncio call."""
        return AsyncRetrying(
            retry=retry_if_exception_type(Unavailable), wait=self._wait, stop=self._stop(deadline), reraise=True
        )

    def _wait(self, state: RetryCallState) -> float:
        return self.delay(state.attempt_number, state.outcome.exception() if state.outcome else None)

    def _stop(self, deadline: float) -> Callable[[RetryCallState], bool]:
        def stop(state: RetryCallState) -> bool:
            return state.attempt_number >= self.attempts or self.clock() + state.upcoming_sleep >= deadline

        return stop


NO_RETRY = RetryPolicy(attempts=1)
"""For a call that must not be repeated, and for callers with a retry of their own."""
