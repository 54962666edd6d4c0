"""GetStats: sums over the decision log, as of a moment that is told (§10 of the contract)."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from tidegate_server.core.model import SECOND, Caller, Instant, Nanos, WallTime
from tidegate_server.ports import Clock, DecisionStore

ROLLUP_EVERY: Nanos = 5 * SECOND


class StatsRow(NamedTuple):
    """The figures of one key: an agent, a route, a limit, a stage or a model."""

    group: str
    key: str
    figures: Mapping[str, float]


class Stats(NamedTuple):
    """A rollup and its moment; what was decided since then is not in it."""

    as_of: WallTime
    rows: tuple[StatsRow, ...]


class GetStats:
    """One rollup per namespace serves all who ask within ROLLUP_EVERY; for one query, list its session's decisions."""

    def __init__(self, store: DecisionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._rollups: dict[str, tuple[Instant, Stats]] = {}
        self._rolling = asyncio.Lock()

    async def __call__(self, caller: Caller) -> Stats:
        """Raises StoreUnavailable when there is no rollup yet and none can be made; else an older one is told."""
        async with self._rolling:
            made, stats = self._rollups.get(caller.namespace, (None, None))
            now = self._clock.monotonic()
            if stats is None or made is None or now - made >= ROLLUP_EVERY:
                stats = await self._roll_up(caller.namespace)
                self._rollups[caller.namespace] = (now, stats)
            return stats

    async def _roll_up(self, namespace: str) -> Stats:
        as_of = self._clock.wall()
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for group, key, figure, value in await self._store.totals(namespace):
            rows.setdefault((group, key), {})[figure] = value
        return Stats(as_of, tuple(StatsRow(group, key, figures) for (group, key), figures in rows.items()))
