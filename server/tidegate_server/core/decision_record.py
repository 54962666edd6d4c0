"""What the decision log keeps of one decision (§10), and what its statistics count."""

import hashlib
from typing import NamedTuple

from tidegate_server.core.admission_detail import DetailWriter, admission_detail, recompute
from tidegate_server.core.model import WallTime

__all__ = [
    "ADMISSION",
    "HOP",
    "SELECTION",
    "DecisionRecord",
    "DetailWriter",
    "Tally",
    "admission_detail",
    "recompute",
    "session_hash",
    "tallies",
]

ADMISSION = "admission"
HOP = "hop"
SELECTION = "selection"

_SESSION_DOMAIN = b"tidegate.session"
"""Personalises the hash, so that a session's hash is never the pin id of the same worker under the same key."""


class Tally(NamedTuple):
    """An increment of one figure of the statistics, e.g. ("selection_call", "gpt-4o", "input_tokens", 812)."""

    group: str
    key: str
    figure: str
    value: float = 1.0


class DecisionRecord(NamedTuple):
    """One decision as it is logged.

    `kind` is ADMISSION, HOP or SELECTION; `subject` the route or model that was asked for, the agent or the flow;
    `outcome` and `reason` the names of the wire's values. `session` is `session_hash` of the worker or session, "" when
    there is none. `detail` is JSON text and holds all that the decision read. `tallies` are what this decision counts
    for beyond itself.
    """

    decision_id: str
    decide_time: WallTime
    kind: str
    subject: str
    outcome: str
    reason: str = ""
    session: str = ""
    namespace: str = "default"
    detail: str = "{}"
    tallies: tuple[Tally, ...] = ()


def session_hash(key: bytes, namespace: str, session_id: str) -> str:
    """The keyed hash under which a worker's or session's decisions and turns are found; the id itself is never stored.

    64 hexadecimal digits: BLAKE2b of the namespace and the id under `key` (1 to 64 bytes), domain apart from the pins'.
    """
    scope = namespace.encode()
    message = len(scope).to_bytes(4, "big") + scope + session_id.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(message, digest_size=32, key=key, person=_SESSION_DOMAIN).hexdigest()


def tallies(record: DecisionRecord) -> tuple[Tally, ...]:
    """All that `record` adds to the statistics: itself by outcome and reason, then its own tallies.

    An admission counts for its route and a selection for its agent; a refused hop counts for the limit that it hit.
    """
    group, key = ("flow", record.reason) if record.kind == HOP else (record.kind, record.subject)
    own = [Tally(group, key, "decisions"), Tally(group, key, record.outcome.lower() or "unknown")]
    if record.reason and record.kind == ADMISSION:
        own.append(Tally(group, key, record.reason.lower()))
    return (*own, *record.tallies)
