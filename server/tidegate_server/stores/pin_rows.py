"""Pins as rows of SQLite: find, store, retire. Plain functions on a connection; they run on a store's threads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from tidegate_server.core.model import CorruptPin, Pin, StoredPin, WallTime
from tidegate_server.core.pins import PinCodec
from tidegate_server.ports import PinCensus, PinFilter, PinPage
from tidegate_server.stores.sql import queries

SQL = queries("pins")


class Retirement(NamedTuple):
    """Who retires pins, when and why."""

    who: str
    when: WallTime
    why: str


class PinRows:
    """The statements, under one key."""

    def __init__(self, codec: PinCodec) -> None:
        self._codec = codec

    def find(self, connection: apsw.Connection, pin_id: bytes) -> StoredPin | None:
        """The pin; None only when both trees were read and neither knows the id."""
        try:
            row = _one(connection, "find", pin_id)
        except apsw.CorruptError:
            # A damaged page. The witness may still tell that there is a pin; that there is none cannot be told now.
            if _one(connection, "witnessed", pin_id) is None:
                raise
            return CorruptPin(pin_id)
        if row is not None:
            return self._codec.open(*row)
        if _one(connection, "witnessed", pin_id) is None:
            return None
        try:
            row = _one(connection, "find_by_walking", pin_id)
        except apsw.CorruptError:
            row = None
        return self._codec.open(*row) if row is not None else CorruptPin(pin_id)

    def create(self, connection: apsw.Connection, pin: Pin, record: bytes, checksum: bytes) -> tuple[StoredPin, bool]:
        """Store the pin, sealed already, unless its id is taken: what is stored now, and whether it is ours."""
        stored = self.find(connection, pin.pin_id)
        if stored is not None:
            return stored, False
        connection.execute(SQL["insert"], {"pin_id": pin.pin_id, "record": record, "checksum": checksum})
        connection.execute(SQL["insert_witness"], {"pin_id": pin.pin_id})
        return pin, True

    def page(self, connection: apsw.Connection, which: PinFilter, after: bytes, limit: int, rows: int) -> PinPage:
        """At most `limit` matches among the next `rows` rows."""
        found: list[StoredPin] = []
        read = 0
        for row in connection.execute(SQL["page"], {"after": after, "limit": rows}):
            read += 1
            after = max(after, row[0])
            pin = self._codec.open(*row)
            if which.matches(pin):
                found.append(pin)
                if len(found) == limit:
                    return PinPage(tuple(found), after)
        return PinPage(tuple(found), after if read == rows else b"")

    def retire(self, connection: apsw.Connection, pins: Sequence[Pin], retirement: Retirement) -> Sequence[Pin]:
        """Turn those that are not retired yet into tombstones, with an audit line each; return them as they are now."""
        retired: list[Pin] = []
        for pin_id in (pin.pin_id for pin in pins):
            stored = self.find(connection, pin_id)
            if isinstance(stored, Pin) and not stored.retired:
                tombstone = stored._replace(retired=True)
                record, checksum = self._codec.seal(tombstone)
                connection.execute(SQL["replace"], {"pin_id": pin_id, "record": record, "checksum": checksum})
                who, when, why = retirement
                connection.execute(SQL["insert_audit"], {"pin_id": pin_id, "who": who, "at": when, "why": why})
                retired.append(tombstone)
        return retired

    def census(self, connection: apsw.Connection) -> PinCensus:
        """Look every known id up, as a worker's call would; then look at the rows that no known id leads to."""
        checked, corrupt = 0, set[bytes]()
        for (pin_id,) in connection.execute(SQL["all_witnesses"]):
            checked += 1
            if isinstance(self.find(connection, pin_id), CorruptPin):
                corrupt.add(pin_id)
        for pin_id, record, checksum in connection.execute(SQL["unwitnessed"]):
            holds = isinstance(self._codec.open(pin_id, record, checksum), Pin)
            # Under its true id it was counted above: only the id was damaged, and the checksum tells which it was.
            counted = any(isinstance(self._codec.open(known, record, checksum), Pin) for known in corrupt)
            if not holds and not counted:
                checked += 1
                corrupt.add(pin_id)
        return PinCensus(checked, tuple(sorted(corrupt)))

    def fingerprints(self, connection: apsw.Connection) -> Mapping[tuple[str, str, str, str], int]:
        """See PinStore."""
        counts: Counter[tuple[str, str, str, str]] = Counter()
        for row in connection.execute(SQL["all"]):
            pin = self._codec.open(*row)
            if isinstance(pin, Pin) and not pin.retired:
                counts[pin.route, pin.candidate, pin.policy_fingerprint, pin.binding_fingerprint] += 1
        return counts

    @staticmethod
    def nothing(connection: apsw.Connection) -> None:
        """Read something that means nothing: whether the disk can be read again."""
        for _ in connection.execute("SELECT 1 FROM meta"):
            pass


def _one(connection: apsw.Connection, statement: str, pin_id: bytes) -> tuple[Any, ...] | None:
    cursor = connection.execute(SQL[statement], {"pin_id": pin_id})
    try:
        row: tuple[Any, ...] | None = cursor.fetchone()
    finally:
        cursor.close(True)
    return row
