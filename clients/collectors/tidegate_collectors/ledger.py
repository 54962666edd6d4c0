"""What one collector last said, fact by fact, and how old that is by now (§6 of the contract).

After a reconnect it is said again with its true age, so that a server that restarted knows within a second.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tidegate.v1 import admission_pb2, types_pb2

from tidegate_collectors.facts import Cleared, Fact, Kind, Reading, Source
from tidegate_collectors.wire import BLOCKERS, duration, observations

_KINDS = {number: kind for kind, number in BLOCKERS.items()}


class Key(NamedTuple):
    """What makes a fact the newer one of another (§3)."""

    provider: str
    model: str
    kind: str
    detail: str
    """Window, currency or blocker."""
    scope: str


@dataclass(slots=True)
class _Entry:
    observation: types_pb2.Observation
    captured: float
    """On the collector's monotonic clock."""


@dataclass(slots=True)
class Update:
    """What is to be sent after a reading: first the retractions, then the observations."""

    observations: list[types_pb2.Observation] = field(default_factory=list)
    retractions: list[admission_pb2.Retract] = field(default_factory=list)


class Ledger:
    """The newest facts of one collector."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}
        self._cleared: set[tuple[str, str, Kind]] = set()
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, reading: Reading, source: Source, monotonic: float, now: datetime) -> Update:
        """Take a reading that arrived at `monotonic`, and return what the server is to be told of it.

        Of an error that is no fact; at most that the call itself succeeded, where it did.
        """
        facts = reading.facts if reading.ok else ()
        told = [
            (fact, observation)
            for fact in (*facts, *self._clearances(reading, source))
            for observation in observations(fact, source)
        ]
        retractions = self._no_longer_named(reading, {key_of(observation) for _, observation in told})
        keys = []
        for fact, observation in told:
            self._sequence += 1
            observation.sequence = self._sequence
            keys.append(key_of(observation))
            self._entries[keys[-1]] = _Entry(observation, monotonic - _lag(fact, now))
            self._note_blocker(observation)
        # A retraction may take more with it than was meant, so what still stands is said again.
        again = None if retractions else keys
        return Update(self.newest(monotonic, now, again), retractions)

    def newest(self, monotonic: float, now: datetime, keys: Iterable[Key] | None = None) -> list[types_pb2.Observation]:
        """Return the newest facts, all or those of `keys`, with their age at `monotonic`; not what is past its end."""
        self._entries = {key: entry for key, entry in self._entries.items() if not _over(entry, monotonic, now)}
        chosen = self._entries if keys is None else {key: self._entries[key] for key in keys if key in self._entries}
        return [_aged(entry, monotonic) for entry in chosen.values()]

    def forget(self) -> None:
        """Drop everything: it belonged to another credential."""
        self._entries.clear()
        self._cleared.clear()

    def _clearances(self, reading: Reading, source: Source) -> list[Fact]:
        """Return what a success clears, once until it is blocked again; an earlier run of ours may have blocked it."""
        facts: list[Fact] = []
        for kind in sorted(reading.proves):
            for model in dict.fromkeys(("", source.model)):
                if (source.provider, model, kind) not in self._cleared:
                    self._cleared.add((source.provider, model, kind))
                    facts.append(Cleared(provider=source.provider, model=model, kind=kind))
        return facts

    def _note_blocker(self, observation: types_pb2.Observation) -> None:
        if observation.availability.state == types_pb2.AVAILABILITY_STATE_BLOCKED:
            kind = _KINDS[observation.availability.blocker]
            self._cleared.discard((observation.provider, observation.model, kind))

    def _no_longer_named(self, reading: Reading, present: set[Key]) -> list[admission_pb2.Retract]:
        """Drop what a complete answer no longer names, and return how to take it back."""
        if not reading.complete or not reading.ok:
            return []
        health = any(key.kind == "health" for key in present)
        gone = [
            key
            for key in self._entries
            if key not in present
            and ((key.kind == "health" and health) or (key.kind in ("quota", "balance") and not _named(key, reading)))
        ]
        for key in gone:
            del self._entries[key]
        return [
            admission_pb2.Retract(
                providers=[key.provider], window=key.detail if key.kind == "quota" else "", scope=key.scope
            )
            for key in gone
        ]


def key_of(observation: types_pb2.Observation) -> Key:
    """Return the key of an observation's fact."""
    kind = observation.WhichOneof("value") or ""
    detail, scope = "", ""
    if kind == "quota":
        detail, scope = observation.quota.window, observation.quota.scope
    elif kind == "balance":
        detail, scope = observation.balance.currency, observation.balance.scope
    elif kind == "availability":
        detail = str(observation.availability.blocker)
    return Key(observation.provider, observation.model, kind, detail, scope)


def _named(key: Key, reading: Reading) -> bool:
    """Tell whether an answer named this window or balance, also where it had to be dropped."""
    return (key.detail if key.kind == "quota" else "", key.scope) in reading.named


def _lag(fact: Fact, now: datetime) -> float:
    """Return how long before the answer the fact was captured."""
    return max(0.0, (now - fact.observed_at).total_seconds()) if fact.observed_at else 0.0


def _aged(entry: _Entry, monotonic: float) -> types_pb2.Observation:
    observation = types_pb2.Observation()
    observation.CopyFrom(entry.observation)
    observation.age.CopyFrom(duration(max(0.0, monotonic - entry.captured)))
    return observation


def _over(entry: _Entry, monotonic: float, now: datetime) -> bool:
    """Tell whether a fact is past its ttl, its reset or its end."""
    observation = entry.observation
    if observation.HasField("ttl") and monotonic - entry.captured > observation.ttl.ToTimedelta().total_seconds():
        return True
    value = getattr(observation, observation.WhichOneof("value") or "health")
    for name in ("reset_time", "until_time"):
        if name in value.DESCRIPTOR.fields_by_name and value.HasField(name):
            return bool(getattr(value, name).ToDatetime(now.tzinfo) <= now)
    return False
