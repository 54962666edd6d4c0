"""Times as providers write them. The format is declared by whoever asks, never guessed from the value.

A value that the format cannot mean (a millisecond count where seconds are declared, zero, a negative, text for people)
is None: the reset is unknown.
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime

from tidegate_collectors.numeric import number

EARLIEST = datetime(2015, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
LONGEST = timedelta(days=400)
"""No window of any provider is longer than a year; a reset further away is a mistake of unit."""

_GO_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_GO_UNIT = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "μs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAY = 86_400


def epoch_s(value: object) -> datetime | None:
    """Read seconds since 1970."""
    seconds = number(value)
    return None if seconds is None else _instant(seconds)


def epoch_ms(value: object) -> datetime | None:
    """Read milliseconds since 1970."""
    millis = number(value)
    return None if millis is None else _instant(millis / 1000)


def rfc3339(value: object) -> datetime | None:
    """Read an instant with its offset, in whole seconds: sources differ below that. Without an offset it is none."""
    if not isinstance(value, str) or "T" not in value.upper():
        return None
    try:
        instant = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    if instant.tzinfo is None:
        return None
    return _plausible(instant.astimezone(UTC).replace(microsecond=0))


def date_utc(value: object) -> datetime | None:
    """Read a date without a time: it begins at midnight UTC."""
    if not isinstance(value, str) or not _DATE.fullmatch(value.strip()):
        return None
    try:
        return _plausible(datetime.fromisoformat(value.strip()).replace(tzinfo=UTC))
    except ValueError:
        return None


def seconds_until(value: object) -> timedelta | None:
    """Read a number of seconds from now."""
    seconds = number(value)
    return None if seconds is None else _length(seconds)


def go_duration(value: object) -> timedelta | None:
    """Read a duration as Go prints it: `12ms`, `6m0s`, `1h2m3.5s`, `0`."""
    if not isinstance(value, str):
        return None
    text = value.strip()
    parts = _GO_PART.findall(text)
    if text == "0":
        return timedelta()
    if not parts or "".join(amount + unit for amount, unit in parts) != text:
        return None
    return _length(sum((Decimal(amount) * Decimal(_GO_UNIT[unit]) for amount, unit in parts), Decimal()))


def period_utc(value: object, now: datetime) -> datetime | None:
    """Return the end of the running `daily`, `weekly` (from Monday) or `monthly` period in UTC."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if value == "daily":
        return day + timedelta(days=1)
    if value == "weekly":
        return day + timedelta(days=7 - day.weekday())
    if value == "monthly":
        return (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    return None


def http_date(value: str) -> datetime | None:
    """Read the instant of a `Date` or `Retry-After` header."""
    try:
        instant = parsedate_to_datetime(value)
    except ValueError:
        return None
    return _plausible(instant.astimezone(UTC)) if instant.tzinfo else None


def window_name(seconds: object) -> str | None:
    """Name a window by its length: `5h`, `7d`, `90m`. Reported lengths are off by up to 1 %; zero is no length."""
    length = number(seconds)
    if length is None or length <= 0 or length > LONGEST.total_seconds():
        return None
    for usual in (5 * 3600, _DAY, 7 * _DAY, 30 * _DAY):
        if abs(length - usual) <= usual // 100:
            length = Decimal(usual)
    for unit, size in (("d", _DAY), ("h", 3600), ("m", 60)):
        if length % size == 0:
            return f"{int(length) // size}{unit}"
    return f"{int(length)}s"


def isoformat(instant: datetime) -> str:
    """Write an instant in UTC, as short as it is exact to the millisecond."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    return text.removesuffix(".000") + "Z"


def _instant(seconds: Decimal) -> datetime | None:
    # Bounds first: beyond them the conversion raises instead of answering.
    if not Decimal(EARLIEST.timestamp()) <= seconds <= Decimal(LATEST.timestamp()):
        return None
    return datetime.fromtimestamp(float(seconds), UTC)


def _plausible(instant: datetime) -> datetime | None:
    return instant if EARLIEST <= instant <= LATEST else None


def _length(seconds: Decimal) -> timedelta | None:
    if not 0 <= seconds <= Decimal(LONGEST.total_seconds()):
        return None
    return timedelta(microseconds=int(seconds * 1_000_000))
