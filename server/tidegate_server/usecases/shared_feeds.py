"""Collectors of all replicas: a cold wait here may be ended by a collector that is connected elsewhere (§4.1 step 8).

Each replica tells the others every second, and whenever it changes, which collectors are connected to it. For each of
those there is a stand-in session here, so that every rule of `Feeds` holds for all of them: who covers a provider, one
refresh in flight, who has failed. What a stand-in is asked goes to its replica, and the answer comes back; the facts
themselves come through the fact store.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate_server.core.model import SECOND, Caller, Instant, Nanos
from tidegate_server.errors import FeedReplaced, Overloaded
from tidegate_server.ports import Clock, Peers
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.feeds import Feeds, RefreshAsked, Session

TELL_EVERY: Nanos = SECOND
SILENT_AFTER: Nanos = 3 * SECOND
"""A replica that was not heard of for so long is gone, and its collectors with it."""


class _Errand(asyncio.Queue[RefreshAsked]):
    """In place of the queue of a session: what is put in goes to the replica that has the collector."""

    def __init__(self, send: Callable[[RefreshAsked], None]) -> None:
        super().__init__()
        self._send = send

    def put_nowait(self, item: RefreshAsked) -> None:
        """Send it there."""
        self._send(item)


class SharedFeeds(Feeds):
    """The feeds of this replica, and stand-ins for those of the others. `run` is a task of the server."""

    def __init__(self, changes: Changes, max_feeds: int, peers: Peers, clock: Clock) -> None:
        super().__init__(changes, sys.maxsize)
        self._max_own = max_feeds
        self._peers = peers
        self._clock = clock
        self._me = secrets.token_hex(8)
        self._own: dict[Session, tuple[int, Instant]] = {}
        self._last_number = 0
        self._stand_ins: dict[str, dict[int, Session]] = {}
        self._heard_at: dict[str, Instant] = {}
        self._asked_by: dict[tuple[Session, int], list[tuple[str, int, int, str]]] = {}
        peers.listen(self._heard)

    def open(self, session: Session) -> None:
        """See Feeds. Only own streams count for the bound."""
        names = {(own.caller.name, own.collector) for own in self._own}
        if len(self._own) >= self._max_own and (session.caller.name, session.collector) not in names:
            raise Overloaded("feeds")
        super().open(session)
        self._last_number += 1
        self._own[session] = (self._last_number, self._clock.monotonic())
        self._tell()

    def close(self, session: Session) -> None:
        """See Feeds. Replicas that wait for its answer are told that there will be none."""
        super().close(session)
        self._own.pop(session, None)
        for place in [place for place in self._asked_by if place[0] is session]:
            self._report(place, None)
        self._tell()

    def drain(self) -> None:
        """See Feeds."""
        super().drain()
        self._own.clear()
        self._tell()

    def answered(self, session: Session, refresh_id: int, failed_providers: Iterable[str]) -> None:
        """See Feeds. The answer goes to the replicas that asked, too."""
        failed = frozenset(failed_providers)
        super().answered(session, refresh_id, failed)
        if (session, refresh_id) in self._asked_by:
            self._report((session, refresh_id), failed)

    async def run(self) -> None:
        """Tell the others, and forget those that have gone silent; for ever."""
        self._say({"hello": True})
        while True:
            self._tell()
            await self._clock.sleep(TELL_EVERY)
            now = self._clock.monotonic()
            for replica in [r for r, at in self._heard_at.items() if now - at > SILENT_AFTER]:
                del self._heard_at[replica]
                self._replace(replica, {})

    def _tell(self) -> None:
        now = self._clock.monotonic()
        sessions = [
            [number, own.caller.name, own.collector, sorted(own.providers), _listed(own.caller.providers),
             own.can_refresh, own.interval, now - opened]
            for own, (number, opened) in self._own.items() if own.is_live
        ]  # fmt: skip
        self._say({"sessions": sessions})

    def _say(self, message: Mapping[str, object]) -> None:
        self._peers.send(json.dumps({"from": self._me, **message}).encode())

    def _heard(self, raw: bytes) -> None:
        try:
            message = json.loads(raw)
            replica = str(message["from"])
            if replica != self._me and message.get("to", self._me) == self._me:
                self._hear(replica, message)
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # another version's words; what matters is said again

    def _hear(self, replica: str, message: Mapping[str, Any]) -> None:
        if "hello" in message:
            self._tell()
        elif "sessions" in message:
            self._heard_at[replica] = self._clock.monotonic()
            self._replace(replica, {int(words[0]): words for words in message["sessions"]})
        elif "ask" in message:
            self._asked_from(replica, *message["ask"])
        elif "done" in message:
            number, refresh_id, failed = message["done"]
            stand_in = self._stand_ins.get(replica, {}).get(number)
            if stand_in is not None:
                super().answered(stand_in, refresh_id, failed)

    def _replace(self, replica: str, told: Mapping[int, list[Any]]) -> None:
        """Let the stand-ins of a replica be what it told."""
        known = self._stand_ins.setdefault(replica, {})
        for number in [number for number in known if number not in told]:
            super().close(known.pop(number))
        for number in told.keys() - known.keys():
            known[number] = self._stand_in(replica, number, told[number])
            super().open(known[number])
        if not known:
            del self._stand_ins[replica]

    def _stand_in(self, replica: str, number: int, words: list[Any]) -> Session:
        _, name, collector, providers, allowed, can_refresh, interval, age = words
        self._end_older(name, collector, self._clock.monotonic() - age)
        caller = Caller(f"{name}@{replica}", providers=None if allowed is None else frozenset(allowed))
        session = Session(caller, collector, frozenset(providers), can_refresh, interval)

        def ask(asked: RefreshAsked) -> None:
            left = max(0, asked.until - self._clock.monotonic())
            self._say({"to": replica, "ask": [number, asked.refresh_id, list(asked.providers), left]})

        session.asked = _Errand(ask)
        return session

    def _end_older(self, name: str, collector: str, opened: Instant) -> None:
        """A newer stream of the same identity and collector replaces the old one, whichever replicas they are on."""
        for own, (_, own_opened) in tuple(self._own.items()):
            if (own.caller.name, own.collector) == (name, collector) and own_opened < opened:
                own.end(FeedReplaced(collector))

    def _asked_from(self, replica: str, number: int, refresh_id: int, providers: list[str], left: Nanos) -> None:
        """Another replica's refresh: shared with our own, where one is in flight."""
        session = next((own for own, (known, _) in self._own.items() if known == number and own.is_live), None)
        if session is None:
            self._say({"to": replica, "done": [number, refresh_id, providers]})
            return
        now = self._clock.monotonic()
        for provider in providers:
            here = self.ask_one(session, provider, now + left, now)
            self._asked_by.setdefault((session, here), []).append((replica, number, refresh_id, provider))

    def _report(self, place: tuple[Session, int], failed: frozenset[str] | None) -> None:
        """Tell those who asked what failed (None: all of it)."""
        for replica, number, refresh_id, provider in self._asked_by.pop(place):
            has_failed = failed is None or provider in failed
            self._say({"to": replica, "done": [number, refresh_id, [provider] if has_failed else []]})


def _listed(providers: frozenset[str] | None) -> list[str] | None:
    return None if providers is None else sorted(providers)
