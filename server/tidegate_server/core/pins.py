"""How a pin is made, named, written down and recognised (§5 of the contract). Pure.

Everything hangs on one secret key. The id of a pin is a keyed hash, so that no worker's id is stored and nobody without
the key can tell which worker a row belongs to. The record carries a checksum under the same key over id and record
together, so that a changed bit, a row moved to another id and a row made up without the key are all recognised.
"""

import hmac
import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from sys import intern

from tidegate_server.core.model import CorruptPin, Pin, StoredPin, Tier, WallTime
from tidegate_server.core.policy import Candidate, Route

MIN_KEY_BYTES = 32
"""What a key must hold at least: 256 random bits."""

ID_BYTES = 32
CHECKSUM_BYTES = 32

# `person` keeps the uses of the key apart: no checksum is ever some worker's id. At most 16 bytes.
_FOR_ID = b"tidegate pin id"
_FOR_RECORD = b"tidegate pin row"
_FOR_CHECK_VALUE = b"tidegate pin kcv"

_PLACES_KEPT = 1024
"""Namespaces, tenants and routes whose common part of an id is kept; it takes half of an id's time."""

_RECORD_FORMAT = 1
_LENGTH = struct.Struct(">I")
_TAIL = struct.Struct(">Bq?")  # tier, create_time, retired


def new_pin(route: Route, candidate: Candidate, namespace: str, pin_id: bytes, wall: WallTime) -> Pin:
    """The binding of a worker to a candidate, as it will be stored for ever."""
    return Pin(
        pin_id,
        namespace,
        route.name,
        candidate.name,
        candidate.provider,
        candidate.model,
        candidate.tier,
        candidate.credential_source,
        route.fingerprint,
        candidate.binding_fingerprint,
        wall,
    )


class PinCodec:
    """Names and seals pins under one key, the content of the key file: at least 32 random bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"a pin key needs at least {MIN_KEY_BYTES} bytes, this one has {len(key)}")
        secret = blake2b(
            key, digest_size=blake2b.MAX_KEY_SIZE
        ).digest()  # BLAKE2b takes 64 bytes of key; a file may hold more
        self._for_id = blake2b(key=secret, person=_FOR_ID, digest_size=ID_BYTES)
        self._for_places: dict[tuple[str, str, str], blake2b] = {}
        self._for_record = blake2b(key=secret, person=_FOR_RECORD, digest_size=CHECKSUM_BYTES)
        self.check_value = blake2b(key=secret, person=_FOR_CHECK_VALUE, digest_size=16).digest()
        """Tells two keys apart and tells nothing about either: stored beside the pins to know the key again."""

    def pin_id(self, namespace: str, tenant: str, route: str, worker_id: str) -> bytes:
        """The id of that worker's pin. Compared byte for byte: nothing is folded, trimmed or normalised (§4.1.2)."""
        place = (namespace, tenant, route)
        named = (self._for_places.get(place) or self._for_place(place)).copy()
        named.update(_join((worker_id,)))
        return named.digest()

    def seal(self, pin: Pin) -> tuple[bytes, bytes]:
        """What to store for a pin beside its id: the record and its checksum."""
        record = bytes((_RECORD_FORMAT,)) + _join(_texts(pin)) + _TAIL.pack(pin.tier, pin.create_time, pin.retired)
        return record, self._checksum(pin.pin_id, record)

    def open(self, pin_id: object, record: object, checksum: object) -> StoredPin:
        """The pin of a stored row; CorruptPin unless the checksum holds for just this id and record.

        The arguments are what a store read: after a flipped bit not even their types are what they were.
        """
        if not isinstance(pin_id, bytes):
            return CorruptPin(b"")
        if not (isinstance(record, bytes) and isinstance(checksum, bytes)):
            return CorruptPin(pin_id)
        if not hmac.compare_digest(self._checksum(pin_id, record), checksum):
            return CorruptPin(pin_id)
        return _read(pin_id, record)

    def same_key(self, check_value: bytes) -> bool:
        """Whether a stored check value is that of this key."""
        return hmac.compare_digest(self.check_value, check_value)

    def _for_place(self, place: tuple[str, str, str]) -> blake2b:
        """The hash of an id as far as all workers of one namespace, tenant and route share it."""
        if len(self._for_places) >= _PLACES_KEPT:
            self._for_places.clear()
        named = self._for_places[place] = self._for_id.copy()
        named.update(_join(place))
        return named

    def _checksum(self, pin_id: bytes, record: bytes) -> bytes:
        sealed = self._for_record.copy()
        sealed.update(_LENGTH.pack(len(pin_id)) + pin_id + record)
        return sealed.digest()


def _texts(pin: Pin) -> tuple[str, ...]:
    return (
        pin.namespace,
        pin.route,
        pin.candidate,
        pin.provider,
        pin.model,
        pin.credential_source,
        pin.policy_fingerprint,
        pin.binding_fingerprint,
    )


def _join(texts: Iterable[str]) -> bytes:
    """Each text behind its length, so that ("ab", "c") and ("a", "bc") differ. Any str has its own bytes."""
    parts: list[bytes] = []
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)


def _read(pin_id: bytes, record: bytes) -> Pin:
    """Read what `seal` wrote. Called only when the checksum holds, so a fault in here is ours and not the disk's."""
    if record[0] != _RECORD_FORMAT:
        raise ValueError(f"a pin of record format {record[0]}; this version reads {_RECORD_FORMAT}")
    tier, create_time, retired = _TAIL.unpack(record[-_TAIL.size :])
    namespace, route, candidate, provider, model, credential, policy, binding = _split(record[1 : -_TAIL.size])
    return Pin(
        pin_id,
        namespace,
        route,
        candidate,
        provider,
        model,
        Tier(tier),
        credential,
        policy,
        binding,
        create_time,
        retired,
    )


def _split(joined: bytes) -> Iterator[str]:
    # Interned: a million pins share a handful of routes, candidates and fingerprints.
    at = 0
    while at < len(joined):
        (length,) = _LENGTH.unpack_from(joined, at)
        at += _LENGTH.size + length
        yield intern(joined[at - length : at].decode("utf-8", "surrogatepass"))
