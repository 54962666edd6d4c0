"""What is past its time leaves the stores: decisions by `decisionLog.retention`, sessions that nobody continued."""

import logging
from collections.abc import Coroutine
from typing import Any

from tidegate_server.core.model import SECOND, Nanos
from tidegate_server.errors import StoreUnavailable
from tidegate_server.ports import AgentStore, Clock, DecisionStore

PURGE_EVERY: Nanos = 3600 * SECOND

_log = logging.getLogger(__name__)


class Retention:
    """Purges once when it starts to run, and then every hour. A session ends with the decisions of its time."""

    def __init__(self, decisions: DecisionStore, agents: AgentStore, clock: Clock, *, keep: Nanos) -> None:
        self._decisions = decisions
        self._agents = agents
        self._clock = clock
        self._keep = keep

    async def run(self) -> None:
        """Purge for ever; a task of the server."""
        while True:
            await self.purge()
            await self._clock.sleep(PURGE_EVERY)

    async def purge(self) -> None:
        """Purge now. A store that cannot is asked again the next time."""
        before = self._clock.wall() - self._keep
        await _tried("decisions", self._decisions.purge(before))
        await _tried("sessions", self._agents.forget_sessions(before))


async def _tried(what: str, purge: Coroutine[Any, Any, int]) -> None:
    try:
        dropped = await purge
    except StoreUnavailable:
        _log.warning("%s past their time could not be dropped; tried again within an hour", what)
    else:
        if dropped:
            _log.info("dropped %d %s past their time", dropped, what)
