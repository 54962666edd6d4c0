"""Collectors that are connected, and what they are asked (§6 of the contract)."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegate_server.core.model import Caller, Instant, Nanos
from tidegate_server.errors import FeedReplaced, Overloaded, ShuttingDown, TidegateError
from tidegate_server.usecases.changes import Changes

ASKED = 256
"""Refreshes that wait for one collector to read them."""


class RefreshAsked(NamedTuple):
    """What goes to a collector: observe these providers again, before the deadline."""

    refresh_id: int
    providers: tuple[str, ...]
    until: Instant


class Session:
    """One open stream of a collector. `asked` holds refreshes to be sent; `ended` is why the server ends the stream."""

    def __init__(self, caller: Caller, collector: str, providers: frozenset[str], can_refresh: bool, interval: Nanos):
        self.caller = caller
        self.collector = collector
        self.providers = providers
        self.can_refresh = can_refresh
        self.interval = interval
        self.asked: asyncio.Queue[RefreshAsked] = asyncio.Queue(ASKED)
        self.ended: asyncio.Future[TidegateError | None] = asyncio.get_running_loop().create_future()

    @property
    def is_live(self) -> bool:
        """A stream that was replaced is still read to its end, and what it says is ignored."""
        return not self.ended.done()

    def covers(self, provider: str) -> bool:
        """Whether it speaks for that provider; a hello that names none means all that its identity may feed."""
        allowed = self.caller.providers
        if self.providers:
            return provider in self.providers
        return allowed is None or provider in allowed

    def end(self, reason: TidegateError | None) -> None:
        """End the stream from our side; None: it has ended by itself."""
        if not self.ended.done():
            self.ended.set_result(reason)


class _Refresh:
    """One refresh of one provider: whose answer is open, and how the others answered.

    After `until` it is asked for anew. `wanted` is how long the last of those who share it waits: a collector that
    connects late still has that long.
    """

    __slots__ = ("any_answered", "any_failed", "open", "until", "wanted")

    def __init__(self, until: Instant) -> None:
        self.until = self.wanted = until
        self.open: dict[Session, int] = {}
        self.any_answered = False
        self.any_failed = False

    def is_in_flight(self, now: Instant) -> bool:
        """Somebody still works on it, or nobody was there to be asked and one who connects in time will be."""
        return now < self.until and (bool(self.open) or not (self.any_answered or self.any_failed))

    def close(self, session: Session, *, failed: bool) -> None:
        """That collector is done with it."""
        del self.open[session]
        self.any_failed = self.any_failed or failed
        self.any_answered = self.any_answered or not failed


class Feeds:
    """The open streams by identity and collector, and at most one refresh in flight per provider."""

    def __init__(self, changes: Changes, max_feeds: int) -> None:
        self._changes = changes
        self._max_feeds = max_feeds
        self._sessions: dict[tuple[str, str], Session] = {}
        self._refreshes: dict[str, _Refresh] = {}
        self._last_id = 0
        self._draining = False

    def open(self, session: Session) -> None:
        """Take a stream in. A new one of the same identity and collector replaces the old one."""
        if self._draining:
            raise ShuttingDown
        name = (session.caller.name, session.collector)
        old = self._sessions.get(name)
        if old is None and len(self._sessions) >= self._max_feeds:
            raise Overloaded("feeds")
        if old is not None:
            self._leave(old, FeedReplaced(session.collector))
        self._sessions[name] = session
        for provider in self._changes.expected():
            refresh = self._refreshes.get(provider)
            if refresh is not None and session.can_refresh and session.covers(provider):
                self._send(session, provider, refresh)
        self._changes.tell(self._everyone_covered_by(session))

    def close(self, session: Session) -> None:
        """The stream is over; nobody waits for its answers any longer."""
        name = (session.caller.name, session.collector)
        if self._sessions.get(name) is session:
            del self._sessions[name]
        self._leave(session, None)

    def drain(self) -> None:
        """End every stream, and take no new one."""
        self._draining = True
        for session in tuple(self._sessions.values()):
            session.end(ShuttingDown())

    @property
    def sessions(self) -> Sequence[Session]:
        """The live streams."""
        return tuple(self._sessions.values())

    def covers(self, provider: str) -> bool:
        """Whether a connected collector speaks for that provider."""
        return any(session.covers(provider) for session in self._sessions.values())

    def covered_only_passively(self, provider: str) -> bool:
        """Whether only collectors that cannot be asked cover it: no traffic, no facts, and so no traffic (§6)."""
        covering = [session for session in self._sessions.values() if session.covers(provider)]
        return bool(covering) and not any(session.can_refresh for session in covering)

    def ask(self, provider: str, until: Instant, now: Instant) -> None:
        """Have that provider observed again, unless it is asked for already."""
        known = self._refreshes.get(provider)
        if known is not None and known.is_in_flight(now):
            known.wanted = max(known.wanted, until)
            return
        refresh = self._refreshes[provider] = _Refresh(until)
        for session in self._sessions.values():
            if session.can_refresh and session.covers(provider):
                self._send(session, provider, refresh)

    def ask_one(self, session: Session, provider: str, until: Instant, now: Instant) -> int:
        """Have that provider observed again by this collector; the refresh's id, which may be in flight already."""
        refresh = self._refreshes.get(provider)
        if refresh is None or not refresh.is_in_flight(now):
            refresh = self._refreshes[provider] = _Refresh(until)
        if session not in refresh.open:
            self._send(session, provider, refresh)
        return refresh.open[session]

    def has_failed(self, provider: str) -> bool:
        """Whether everyone who was asked for that provider has failed."""
        refresh = self._refreshes.get(provider)
        return refresh is not None and refresh.any_failed and not refresh.any_answered and not refresh.open

    def answered(self, session: Session, refresh_id: int, failed_providers: Iterable[str]) -> None:
        """A collector says that it has done what it could."""
        failed = frozenset(failed_providers)
        done = []
        for provider, refresh in self._refreshes.items():
            if refresh.open.get(session) == refresh_id:
                refresh.close(session, failed=provider in failed)
                done.append(provider)
        self._changes.tell(done)

    def observed(self, session: Session, providers: Iterable[str]) -> None:
        """Fresh observations are an answer, too: the next one who needs to know asks anew (§6)."""
        for provider in set(providers):
            refresh = self._refreshes.get(provider)
            if refresh is not None and session in refresh.open:
                refresh.close(session, failed=False)

    def _send(self, session: Session, provider: str, refresh: _Refresh) -> None:
        self._last_id += 1
        refresh.open[session] = self._last_id
        if session.asked.full():  # it does not read; what it was asked first is over by now
            session.asked.get_nowait()
        session.asked.put_nowait(RefreshAsked(self._last_id, (provider,), refresh.wanted))

    def _leave(self, session: Session, reason: TidegateError | None) -> None:
        session.end(reason)
        for refresh in self._refreshes.values():
            if session in refresh.open:
                refresh.close(session, failed=True)
        self._changes.tell(self._everyone_covered_by(session))

    def _everyone_covered_by(self, session: Session) -> tuple[str, ...]:
        return tuple(provider for provider in self._changes.expected() if session.covers(provider))
