"""A circuit breaker: a store that does not answer is left alone, and one call at a time finds out when it is back.

Closed: calls pass. After `patience` failures in a row it opens: calls fail at once, so that an outage costs a caller
nothing and the store is not buried under retries when it comes back. Half-open: after `probe_after` one call is let
through; its success closes the breaker, its failure opens it for as long again.
"""

from tidegate_server.core.model import SECOND, Instant, Nanos
from tidegate_server.ports import Clock

PATIENCE = 5
"""Failures in a row after which calls are no longer passed on."""

PROBE_AFTER: Nanos = SECOND // 2
"""How long a store is left alone before one call is let through again."""

PROBE_LOST: Nanos = 5 * SECOND
"""After so long without an answer a probe counts as lost, and another may go."""


class Breaker:
    """The state of one dependency. Ask `may_pass` before a call; tell what became of it."""

    def __init__(self, clock: Clock, *, patience: int = PATIENCE, probe_after: Nanos = PROBE_AFTER) -> None:
        self._clock = clock
        self._patience = patience
        self._probe_after = probe_after
        self._failures = 0
        self._next_probe: Instant = 0

    @property
    def is_open(self) -> bool:
        """Whether calls fail at once, but for a probe now and then."""
        return self._failures >= self._patience

    @property
    def is_well(self) -> bool:
        """Whether the last call worked."""
        return self._failures == 0

    def may_pass(self) -> bool:
        """Whether a call may go. While open, one that may is the probe, and the only one until it has ended."""
        if not self.is_open:
            return True
        now = self._clock.monotonic()
        if now < self._next_probe:
            return False
        self._next_probe = now + PROBE_LOST
        return True

    def worked(self) -> None:
        """A call came back well."""
        self._failures = 0

    def failed(self) -> None:
        """A call failed or was late."""
        self._failures = min(self._failures + 1, self._patience)
        self._next_probe = self._clock.monotonic() + self._probe_after
