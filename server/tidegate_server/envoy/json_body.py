"""A request's JSON as it was sent: what it says, and where each value stands, so that one can be replaced alone.

Pure. The C decoder of the standard library reads the values; this module only walks the members of one object.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

MAX_MEMBERS = 1_000
"""Members of one object that is walked: more is no request, and would hold up those of others."""


class InvalidJson(ValueError):
    """The body is no JSON object that can be understood in one way only; the message is for the caller."""


class Member(NamedTuple):
    """A member of an object: its decoded value, and where the value stands in the text."""

    value: object
    start: int
    end: int


class Edit(NamedTuple):
    """Other text for what stands from `start` to `end`."""

    start: int
    end: int
    text: str


class JsonObject:
    """An object within a text. `start` is the place behind its opening brace, `end` the one behind its closing brace.

    A name that stands there twice is refused: two readers might choose differently, and one of them would be the
    provider.
    """

    def __init__(self, text: str, at: int) -> None:
        if text[at : at + 1] != "{":
            raise InvalidJson("is no JSON object")
        self.start = at + 1
        self.members: Mapping[str, Member]
        self.members, self.end = _read_members(text, self.start)

    def value(self, name: str) -> object:
        """A member's value; None also where there is no such member."""
        member = self.members.get(name)
        return None if member is None else member.value

    def set(self, name: str, value: object) -> Edit:
        """The edit that gives a member this value; a member that is not there becomes the first one."""
        text = json.dumps(value)
        member = self.members.get(name)
        if member is not None:
            return Edit(member.start, member.end, text)
        return Edit(self.start, self.start, f"{json.dumps(name)}: {text}" + (", " if self.members else ""))


class JsonBody(JsonObject):
    """A whole body. Raises InvalidJson."""

    def __init__(self, body: bytes) -> None:
        try:
            self.text = body.decode()
        except UnicodeDecodeError:
            raise InvalidJson("is not UTF-8") from None
        super().__init__(self.text, _skip_space(self.text, 0))
        if _skip_space(self.text, self.end) != len(self.text):
            raise InvalidJson("goes on behind its JSON object")

    def nested(self, name: str) -> JsonObject | None:
        """The object that a member is; None where it is none."""
        member = self.members.get(name)
        return JsonObject(self.text, member.start) if member is not None and isinstance(member.value, dict) else None

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The body with these edits, which do not overlap; no other byte differs."""
        parts: list[str] = []
        at = 0
        for edit in sorted(edits):
            parts += (self.text[at : edit.start], edit.text)
            at = edit.end
        return "".join((*parts, self.text[at:])).encode()


def _read_members(text: str, at: int) -> tuple[dict[str, Member], int]:
    """The members from `at`, which is behind the opening brace, and the place behind the closing one."""
    members: dict[str, Member] = {}
    at = _skip_space(text, at)
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        name, at = _decode(text, at)
        if not isinstance(name, str):
            raise InvalidJson("has a member whose name is no string")
        start = _skip_space(text, _expect(text, at, ":"))
        value, at = _decode(text, start)
        if name in members:
            raise InvalidJson(f"names {json.dumps(name[:64])} twice")
        if len(members) == MAX_MEMBERS:
            raise InvalidJson(f"has more than {MAX_MEMBERS} members")
        members[name] = Member(value, start, at)
        at = _skip_space(text, at)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = _skip_space(text, _expect(text, at, ","))


_SPACE = re.compile(r"[ \t\n\r]*")


def _skip_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None, "it also matches nothing"
    return space.end()


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip_space(text, at)
    if text[at : at + 1] != sign:
        raise InvalidJson(f"lacks a {sign!r} at character {at}")
    return at + 1


def _no_number(name: str) -> NoReturn:
    raise InvalidJson(f"has {name}, which is no JSON")


# Numbers as floats: a whole number of a million digits would cost a minute, and no number is read here.
_DECODER = json.JSONDecoder(parse_int=float, parse_constant=_no_number)


def _decode(text: str, at: int) -> tuple[object, int]:
    """The value that starts at `at`, and the place behind it."""
    try:
        decoded: tuple[object, int] = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"is no JSON at character {error.pos}") from None
    except RecursionError:
        raise InvalidJson("is nested too deeply") from None
    return decoded
