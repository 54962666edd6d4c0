"""W3C Trace Context, level 2: reading `traceparent` and `tracestate`, and writing them again.

Written from the published text (https://www.w3.org/TR/trace-context-2/). It restarts a trace that cannot be read; the
guard rejects it instead, for a fresh trace would be a fresh flow.
"""

import re
from typing import NamedTuple

MEMBER = "tidegate"
"""The key of our own list-member."""

MAX_MEMBERS = 32
MAX_LENGTH = 8192
"""How many characters of tracestate are passed on (the text asks for at least 512); gRPC's default for all metadata."""

LARGE_MEMBER = 128
"""Where something must go, entries longer than this go first."""

SAMPLED, RANDOM = 0x01, 0x02

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_LIST_MEMBER = re.compile(
    r"([a-z0-9][a-z0-9_\-*/@]{0,255})=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)
_OURS = re.compile(rf"(?:^|,)[ \t]*{MEMBER}=([^,]*)")
_OWS = " \t"


class Traceparent(NamedTuple):
    """A valid traceparent: ids in lower-case hex, and the flags of level 2 that were set."""

    trace_id: str
    parent_id: str
    flags: int

    def child(self, parent_id: str) -> str:
        """The header to pass on, in the version that we know, with a new parent."""
        return f"00-{self.trace_id}-{parent_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> Traceparent | str:
    """The traceparent, or what is wrong with it.

    Optional white space around it is no part of it. Version 00 has exactly four fields; of a later version the first
    four are read, and of its flags only `sampled`, the one that the text lets a reader assume.
    """
    match = _TRACEPARENT.fullmatch(text.strip(_OWS))
    if match is None:
        return "is not version-traceid-parentid-flags in lower-case hex (W3C Trace Context)"
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "ff":
        return "has the version ff, which is invalid"
    if version == "00" and more is not None:
        return "has more than the four fields of version 00"
    if not trace_id.strip("0"):
        return "has a trace id of zeros only"
    if not parent_id.strip("0"):
        return "has a parent id of zeros only"
    known = SAMPLED | RANDOM if version == "00" else SAMPLED
    return Traceparent(trace_id, parent_id, int(flags, 16) & known)


class Tracestate(NamedTuple):
    """What a tracestate holds: the other vendors' members in their order, and the values of each member of ours.

    A list that breaks the text's rules is discarded whole, as the text says: `others` is empty. Our own member is
    looked for all the same: what was meant as a proof is never taken for none.
    """

    others: tuple[str, ...]
    ours: tuple[str, ...]


def parse_tracestate(text: str) -> Tracestate:
    """Read a tracestate; never fails. Several headers are to be joined by commas beforehand."""
    return Tracestate(_other_members(text), tuple(value.rstrip(_OWS) for value in _OURS.findall(text)))


def _other_members(text: str) -> tuple[str, ...]:
    # A list of 32 members of the largest size has 16 447 characters; white space may be added, but not without end.
    if len(text) > 4 * MAX_LENGTH:
        return ()
    entries = [entry for entry in (part.strip(_OWS) for part in text.split(",")) if entry]
    matches = [_LIST_MEMBER.fullmatch(entry) for entry in entries]
    keys = {match[1] for match in matches if match is not None}
    if len(keys) != len(entries) or len(entries) > MAX_MEMBERS:
        return ()
    return tuple(entry for entry in entries if not entry.startswith(f"{MEMBER}="))


def write_tracestate(value: str, others: tuple[str, ...]) -> str:
    """Our member in front, then the others in their order, within the limits of the text.

    Over 32 members, the last are dropped. Over MAX_LENGTH characters, entries longer than 128 go first, then the rest,
    each from the end.
    """
    members = [f"{MEMBER}={value}", *others][:MAX_MEMBERS]
    while len(members) > 1 and sum(map(len, members)) + len(members) - 1 > MAX_LENGTH:
        large = [i for i, member in enumerate(members) if i and len(member) > LARGE_MEMBER]
        del members[large[-1] if large else -1]
    return ",".join(members)
