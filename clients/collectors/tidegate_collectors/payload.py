"""One answer of a provider, as bytes came in, and the safe ways to look into it."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property

from tidegate_collectors import times
from tidegate_collectors.numeric import number

MAX_BODY = 1 << 20
"""Bytes of a body that are read; a longer one is a collector's error."""
MAX_DEPTH = 64
SKEW = 5.0
"""Seconds between the provider's clock and ours that are taken for network time and rounding."""

Json = None | bool | int | Decimal | str | list["Json"] | dict[str, "Json"]

_STATUS_LINE = re.compile(r"HTTP/\d(?:\.\d)? (\d{3})")


class Malformed(Exception):
    """A body that is not what its source promises. The message holds none of it."""


@dataclass(frozen=True)
class Response:
    """Status, headers (names in lower case), body, and the instant it arrived on our wall clock."""

    body: bytes
    received: datetime
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    @cached_property
    def text(self) -> str:
        """The body as text; bytes that are none are replaced."""
        return self.body.decode(errors="replace")

    @cached_property
    def document(self) -> Json:
        """The body as JSON, floats as exact decimals, NaN and infinity as unknown. Malformed when it is none."""
        return decode(self.body)

    @property
    def tree(self) -> dict[str, Json]:
        """The body as a JSON object; Malformed when it is none."""
        return mapping_or_fail(self.document)

    @cached_property
    def any_tree(self) -> dict[str, Json]:
        """The body as a JSON object, empty when it is none: for errors, whose bodies may be anything."""
        try:
            return self.tree
        except Malformed:
            return {}

    @cached_property
    def skew(self) -> float | None:
        """Seconds the provider's clock is ahead of ours, from the Date header, if more than 5; else None."""
        date = times.http_date(self.headers["date"]) if "date" in self.headers else None
        ahead = (date - self.received).total_seconds() if date else 0.0
        return ahead if abs(ahead) > SKEW else None

    def absolute(self, instant: datetime | None) -> datetime | None:
        """Bring an instant of the provider's clock onto ours."""
        return instant - timedelta(seconds=self.skew or 0.0) if instant else None

    def after(self, length: timedelta | None) -> datetime | None:
        """Anchor a relative time to the instant the answer arrived, once and for all."""
        return self.received + length if length is not None else None

    @property
    def retry_after(self) -> timedelta | None:
        """The Retry-After header: seconds, milliseconds by its sibling, or a date of the provider's clock."""
        millis = number(self.headers.get("retry-after-ms"))
        if millis is not None:
            return times.seconds_until(millis / 1000)
        value = self.headers.get("retry-after", "")
        if number(value) is not None:
            return times.seconds_until(value)
        until = self.absolute(times.http_date(value)) if value else None
        return max(until - self.received, timedelta()) if until else None

    def events(self) -> Iterator[dict[str, Json]]:
        """Yield the JSON objects of a server-sent-events body; other lines are passed over."""
        for line in self.text.splitlines():
            if line.startswith("data:"):
                try:
                    yield mapping_or_fail(decode(line.removeprefix("data:").strip().encode()))
                except Malformed:
                    continue


def decode(body: bytes) -> Json:
    """Parse JSON within the limits of size and depth; Malformed else."""
    if len(body) > MAX_BODY:
        raise Malformed("the body is larger than 1 MiB")
    try:
        document: Json = json.loads(body, parse_float=Decimal, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise Malformed("the body is no JSON") from None
    if _depth(document) > MAX_DEPTH:
        raise Malformed(f"the body is nested deeper than {MAX_DEPTH}")
    return document


def from_file(content: bytes, now: datetime) -> Response:
    """Read a sample: a raw HTTP response (status line, headers, blank line, body), or a bare body with status 200."""
    status = _STATUS_LINE.match(content[:64].decode("latin-1"))
    if not status:
        return Response(content, now)
    head, _, body = content.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = head.decode("latin-1").splitlines()[1:]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Response(body, now, int(status[1]), headers)


def mapping_or_fail(value: Json) -> dict[str, Json]:
    """Return an object; Malformed when it is anything else."""
    if not isinstance(value, dict):
        raise Malformed("the body is no JSON object")
    return value


def mapping(value: Json) -> dict[str, Json]:
    """Return an object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return a list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return a text, or an empty one in place of anything else."""
    return value if isinstance(value, str) else ""


def _depth(document: Json) -> int:
    deepest, level = 0, [document]
    while level and deepest <= MAX_DEPTH:
        deepest += 1
        level = [child for node in level for child in _children(node)]
    return deepest


def _children(node: Json) -> list[Json]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
