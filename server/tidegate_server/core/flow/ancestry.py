"""Signed ancestry: the value of our tracestate member, which proves where a hop stands.

A value is base64url without padding of: one byte of format, 8 bytes that identify the namespace (a digest: the member
passes through agents, which need not learn the name), the hop id (8), the flow's start (8, nanoseconds since the
epoch), its time limit (8, nanoseconds), and 16 bytes of HMAC-SHA256 over all of this, the trace id, the namespace and
the hop's target. So a member that was granted to one agent proves nothing for another, nor in another flow.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

from tidegate_server.core.flow.model import FlowKey, Proof, Signed, Unproved

_FORMAT = 1
_FIELDS = struct.Struct(">B8s8sQQ")
_TAG = 16
_CONTEXT = b"tidegate.flow.hop\x00"

MIN_KEY = 16
"""Bytes that a key must have at least."""

MAX_TIME = (1 << 64) - 1


class Keyring(NamedTuple):
    """The keys of the member, at least one: the first signs, all verify, so that keys can be rotated."""

    keys: tuple[bytes, ...]


def sign(keyring: Keyring, key: FlowKey, target: str, proof: Signed) -> str:
    """The value of our member for a hop into `target`."""
    start, timeout = min(max(0, proof.start), MAX_TIME), min(proof.timeout, MAX_TIME)
    fields = _FIELDS.pack(_FORMAT, _digest(key.namespace), bytes.fromhex(proof.hop_id), start, timeout)
    return _encode(fields + _tag(keyring.keys[0], fields, key, target))


def verify(keyring: Keyring, key: FlowKey, agent: str, values: tuple[str, ...]) -> Proof:
    """What the values of our member prove for `agent` in this flow. More than one is as bad as a forged one."""
    if not values:
        return Unproved.NO_MEMBER
    raw = _decode(values[0]) if len(values) == 1 else None
    if raw is None or len(raw) != _FIELDS.size + _TAG:
        return Unproved.BAD_MEMBER
    fields, tag = raw[:-_TAG], raw[-_TAG:]
    form, namespace, hop_id, start, timeout = _FIELDS.unpack(fields)
    good = [hmac.compare_digest(_tag(secret, fields, key, agent), tag) for secret in keyring.keys]
    if form != _FORMAT or namespace != _digest(key.namespace) or not any(good):
        return Unproved.BAD_MEMBER
    return Signed(hop_id.hex(), start, timeout)


def _tag(secret: bytes, fields: bytes, key: FlowKey, target: str) -> bytes:
    namespace = key.namespace.encode()
    text = b"".join(
        (_CONTEXT, fields, bytes.fromhex(key.trace_id), len(namespace).to_bytes(4, "big"), namespace, target.encode())
    )
    return hmac.digest(secret, text, hashlib.sha256)[:_TAG]


def _digest(namespace: str) -> bytes:
    return hashlib.blake2b(namespace.encode(), digest_size=8).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(value: str) -> bytes | None:
    """The bytes, if `value` is exactly how we would write them."""
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if _encode(raw) == value else None
