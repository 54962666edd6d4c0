"""The check for "healthy while hung": counters that stand still while requests run (§6 of the contract)."""

from dataclasses import dataclass
from datetime import datetime, timedelta

STALL = timedelta(seconds=30)


@dataclass(slots=True)
class _Watch:
    counters: tuple[float, ...]
    since: datetime


class Progress:
    """Remembers, for each engine, since when its counters have not moved although it had work.

    Any movement is progress, a smaller value (a restart) included. So is having no work.
    """

    def __init__(self, stall: timedelta = STALL) -> None:
        self.stall = stall
        self._watched: dict[tuple[str, ...], _Watch] = {}

    def stalled(self, engine: tuple[str, ...], counters: tuple[float, ...], busy: bool, now: datetime) -> bool:
        """Take one scrape at `now`, and tell whether the engine has stood still for the whole `stall`."""
        watch = self._watched.get(engine)
        if watch is None or not busy or not counters or watch.counters != counters or now < watch.since:
            self._watched[engine] = _Watch(counters, now)
            return False
        return now - watch.since >= self.stall

    def reset(self) -> None:
        """Forget: something else has proved that the engines live."""
        self._watched.clear()
