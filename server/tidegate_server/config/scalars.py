"""The values that settings are made of: how each is written, what is refused, and in which words.

A `Leaf` reads one value as it stands in the file (text, number, true or false), writes it back in one spelling, and
knows its JSON Schema. Reading is strict: "5" is no number and 5 no text; but a whole number may be spelled 32768.0.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tidegate_server.core.model import SECOND, Blocker, Nanos, Tier
from tidegate_server.core.policy import PAID_ON_ALLOWED

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DAY: Nanos = 86_400 * SECOND
LONGEST: Nanos = 3650 * DAY
"""The longest length of time that a setting takes: ten years, so that no sum of instants comes near 64 bits."""

NAME_LIMIT = 256
"""Names travel in HTTP headers and metadata, so they are visible ASCII without blanks, of at most this many bytes."""

Schema = Mapping[str, object]


class BadValue(ValueError):
    """A value that a leaf refuses. The text completes "KEY: ", names what is allowed and never holds a secret."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """How one kind of value is read and written, and its JSON Schema. What is written never holds a secret."""

    read: Callable[[object], object]
    schema: Schema
    write: Callable[[Any], object] = lambda value: value

    def __get_pydantic_core_schema__(self, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read with `read` alone and report its words as they are; write with `write` alone."""

        def validate(value: object) -> object:
            try:
                return self.read(value)
            except BadValue as bad:
                raise PydanticCustomError("leaf", "{fault}", {"fault": str(bad)}) from None

        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(validate, serialization=written)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema."""
        return dict(self.schema)


def kind_of(value: object) -> str:
    """Say what a value is, in a file's words, without showing it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    for kinds, words in (
        ((int, float), "a number"),
        (str, "text"),
        (Mapping, "a mapping"),
        ((list, tuple), "a list"),
    ):
        if isinstance(value, kinds):
            return words
    return "something else"


def show(value: object) -> str:
    """Show a value that is no secret: a number as it is, short text in quotes, anything else by its kind."""
    if isinstance(value, str) and len(value) <= 80:
        return quoted(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and len(str(value)) <= 40:
        return str(value)
    return kind_of(value)


def quoted(text: str) -> str:
    """Put text in quotes, with everything escaped that would break a line or a terminal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + '"'


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    hint = "; put it in quotes" if isinstance(value, (bool, int, float)) else ""
    raise BadValue(f"must be text, not {kind_of(value)}{hint}")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise BadValue(f"must be true or false, not {show(value)}")


def whole(lowest: int, highest: int) -> Leaf:
    """Whole numbers from `lowest` to `highest`."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadValue(f"must be a whole number, not {show(value)}")
        if not math.isfinite(value):
            raise BadValue("must be a finite whole number")
        if value != int(value):
            raise BadValue(f"must be a whole number, not {show(value)}")
        if not lowest <= int(value) <= highest:
            raise BadValue(f"must be from {lowest} to {highest}, not {show(value)}")
        return int(value)

    return Leaf(read, {"type": "integer", "minimum": lowest, "maximum": highest})


def real(lowest: float, below: float | None = None, *, highest: float | None = None) -> Leaf:
    """Finite numbers of at least `lowest`, and less than `below` or at most `highest`."""
    top = f"less than {below:g}" if below is not None else f"at most {highest:g}"

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadValue(f"must be a number, not {show(value)}")
        if not math.isfinite(value):
            raise BadValue("must be a finite number")
        if value < lowest or (below is not None and value >= below) or (highest is not None and value > highest):
            raise BadValue(f"must be at least {lowest:g} and {top}, not {show(value)}")
        return float(value)

    bound = {"exclusiveMaximum": below} if below is not None else {"maximum": highest}
    return Leaf(read, {"type": "number", "minimum": lowest, **bound})


_DURATION = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?(ms|s|m|h|d)")
_UNITS: Mapping[str, Nanos] = {"ms": SECOND // 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": DAY}


def duration(value: object) -> Nanos:
    """Read a length of time as whole nanoseconds: a decimal number and one unit of ms, s, m, h, d ("2.5s", "30d")."""
    written = "must be a finite number with a unit (ms, s, m, h, d), as in 300ms, 2.5s, 15m, 5h, 30d"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise BadValue(f"{written}; the unit is missing in {show(value)}" if math.isfinite(value) else written)
    match = _DURATION.fullmatch(value.removeprefix("-")) if isinstance(value, str) else None
    if match is None:
        raise BadValue(f"{written}, not {show(value)}")
    nanos = Decimal(f"{match[1]}.{match[2] or 0}") * _UNITS[match[3]]
    if str(value).startswith("-") or not 0 < nanos <= LONGEST:
        raise BadValue(f"must be longer than 0 and at most 3650d, not {show(value)}")
    if nanos != int(nanos):
        raise BadValue(f"must be whole nanoseconds, which {show(value)} is not")
    return int(nanos)


def spell_duration(nanos: Nanos) -> str:
    """Write a length of time in the largest unit in which it is a whole number, else as a decimal of seconds."""
    for unit in ("d", "h", "m", "s"):
        if nanos % _UNITS[unit] == 0:
            return f"{nanos // _UNITS[unit]}{unit}"
    if nanos < SECOND and nanos % _UNITS["ms"] == 0:
        return f"{nanos // _UNITS['ms']}ms"
    return f"{format(Decimal(nanos) / SECOND, 'f')}s"


def read_name(value: object) -> str:
    """Read a name, as a value or as a key."""
    text = _text(value)
    if not text or len(text) > NAME_LIMIT or not all("!" <= c <= "~" for c in text):
        raise BadValue(
            f"must be a name: 1 to {NAME_LIMIT} visible ASCII characters without blanks, for it travels in HTTP headers"
        )
    return text


def _non_empty(value: object) -> str:
    text = _text(value)
    if not text.strip() or not text.isprintable():
        raise BadValue("must be text that is not empty and can be printed")
    return text


def _path(value: object) -> Path:
    return Path(_non_empty(value))


def choice(spelled: Mapping[str, object]) -> Leaf:
    """One of some words; the value read is what the word stands for."""

    def read(value: object) -> object:
        if isinstance(value, str) and value in spelled:
            return spelled[value]
        raise BadValue(f"must be one of {', '.join(spelled)}, not {show(value)}")

    words = {meaning: word for word, meaning in spelled.items()}
    return Leaf(read, {"type": "string", "enum": list(spelled)}, words.__getitem__)


def _amount(value: object) -> Decimal:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise BadValue('must be an amount in quotes, as in "2.50", so that it stays exact')
    if not isinstance(value, str) or not re.fullmatch(AMOUNT, value):
        raise BadValue(f'must be an amount in quotes, zero or more, as in "2.50", not {show(value)}')
    return Decimal(value)


def _currency(value: object) -> str:
    if isinstance(value, str) and re.fullmatch("[A-Z]{3}", value):
        return value
    raise BadValue(f"must be a currency by its three capital letters, as in USD, not {show(value)}")


def _digest(value: object) -> str:
    # Never shown: whoever puts the token itself here by mistake must not find it in a log.
    if isinstance(value, str) and re.fullmatch("[0-9a-fA-F]{64}", value):
        return value.lower()
    raise BadValue("must be the SHA-256 of the token, 64 hexadecimal digits; the token itself does not belong here")


def _spiffe_id(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"spiffe://[a-z0-9._-]+(/[A-Za-z0-9._-]+)*", value):
        return value
    raise BadValue(f"must be a SPIFFE id, as in spiffe://example.org/gpu-1, not {show(value)}")


def _window(value: object) -> str:
    window, _, scope = read_name(value).partition("/")
    if window and (scope or "/" not in str(value)):
        return str(value)
    raise BadValue(f"must be a quota window, or window/scope, as in 5h or 1mo/premium_interactions, not {show(value)}")


AMOUNT = r"[0-9]{1,12}(\.[0-9]{1,12})?"
TEXT: dict[str, object] = {"type": "string"}

Flag = Annotated[bool, Leaf(_flag, {"type": "boolean"})]
Size = Annotated[int, whole(1, INT64_MAX)]
"""Bytes or tokens: a positive whole number that fits the wire."""
Count = Annotated[int, whole(1, INT32_MAX)]
CountOrZero = Annotated[int, whole(0, INT32_MAX)]
Percent = Annotated[float, real(0, 100)]
Fraction = Annotated[float, real(0, highest=1)]
Duration = Annotated[Nanos, Leaf(duration, TEXT | {"pattern": f"^{_DURATION.pattern}$"}, spell_duration)]
Name = Annotated[str, Leaf(read_name, TEXT | {"pattern": f"^[!-~]{{1,{NAME_LIMIT}}}$"})]
Text = Annotated[str, Leaf(_non_empty, TEXT | {"minLength": 1})]
AnyText = Annotated[str, Leaf(_text, TEXT)]
FilePath = Annotated[Path, Leaf(_path, TEXT | {"minLength": 1}, str)]
Window = Annotated[str, Leaf(_window, TEXT | {"pattern": "^[!-.0-~]+(/[!-~]+)?$"})]
Kind = Annotated[Tier, choice({tier.name.lower(): tier for tier in Tier})]
PaidOn = Annotated[Blocker, choice({blocker.name: blocker for blocker in sorted(PAID_ON_ALLOWED)})]
Amount = Annotated[Decimal, Leaf(_amount, TEXT | {"pattern": f"^{AMOUNT}$"}, str)]
Currency = Annotated[str, Leaf(_currency, TEXT | {"pattern": "^[A-Z]{3}$"})]
Digest = Annotated[str, Leaf(_digest, TEXT | {"pattern": "^[0-9a-fA-F]{64}$"})]
SpiffeId = Annotated[str, Leaf(_spiffe_id, TEXT | {"pattern": "^spiffe://"})]
