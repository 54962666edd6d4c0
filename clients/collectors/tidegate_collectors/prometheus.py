"""A metrics page in the Prometheus text format: exact names, declared labels, declared reduction.

Two series that match and no reduction that says what to do with them are an error, never "the last one wins". A metric
that is missing, or not a finite number, is unknown.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tidegate_collectors.payload import Malformed

MAX_SERIES = 5_000
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@dataclass(frozen=True, slots=True)
class Series:
    """One sample of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


def read(page: str, names: Iterable[str], *, max_series: int = MAX_SERIES) -> dict[str, list[Series]]:
    """Return the series of exactly these names, by name; a name that the page does not have is not in the result.

    A line that cannot be parsed is left out, as is a value that is not finite, and with it nothing else. Malformed:
    more than `max_series` lines match.
    """
    wanted = frozenset(names)
    found: dict[str, list[Series]] = {}
    total = 0
    for line in page.splitlines():
        name = _NAME.match(line)
        if not name or name[0] not in wanted:
            continue
        total += 1
        if total > max_series:
            raise Malformed(f"more than {max_series} series")
        found.setdefault(name[0], []).extend(_samples(line))
    return found


def first(series: Mapping[str, list[Series]], aliases: Iterable[str]) -> list[Series]:
    """Return the series of the first alias that the page has: the names of one metric, newest first."""
    return next((series[name] for name in aliases if series.get(name)), [])


def where(series: Iterable[Series], labels: Mapping[str, str]) -> list[Series]:
    """Return the series whose labels match: exactly, or by a whole-value pattern written as `/pattern/`."""
    return [each for each in series if all(_matches(each.labels.get(name, ""), want) for name, want in labels.items())]


def grouped(series: Iterable[Series], labels: Iterable[str]) -> dict[tuple[str, ...], list[Series]]:
    """Group series by the values of some labels; a label that is missing is the empty value."""
    names = tuple(labels)
    groups: dict[tuple[str, ...], list[Series]] = {}
    for each in series:
        groups.setdefault(tuple(each.labels.get(name, "") for name in names), []).append(each)
    return groups


def reduce_over(series: list[Series], over: Iterable[str], by: Callable[[Iterable[float]], float]) -> list[Series]:
    """Fold the series that differ in the labels `over` only."""
    gone = set(over)
    kept = sorted({name for each in series for name in each.labels} - gone)
    return [
        Series(group[0].name, dict(zip(kept, key, strict=True)), by([each.value for each in group]))
        for key, group in grouped(series, kept).items()
    ]


def only(series: list[Series]) -> float | None:
    """Return the value of the one series there is, None of none. Malformed when several are left."""
    if len(series) > 1:
        labels = sorted({name for each in series for name in each.labels})
        raise Malformed(
            f"{series[0].name}: {len(series)} series and no reduction over {', '.join(labels) or 'nothing'}"
        )
    return series[0].value if series else None


def total(series: Iterable[Series]) -> float | None:
    """Add up; None of nothing."""
    values = [each.value for each in series]
    return math.fsum(values) if values else None


def largest(series: Iterable[Series]) -> float | None:
    """Return the largest value; None of nothing."""
    return max((each.value for each in series), default=None)


def _samples(line: str) -> list[Series]:
    try:
        families = list(text_string_to_metric_families(line + "\n"))
    except (ValueError, IndexError, KeyError):
        return []
    return [
        Series(sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if math.isfinite(sample.value)
    ]


def _matches(value: str, want: str) -> bool:
    if len(want) > 1 and want.startswith("/") and want.endswith("/"):
        return re.fullmatch(want[1:-1], value) is not None
    return value == want
