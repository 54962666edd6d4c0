"""Reads the decision vectors: the files, the relative times in them, and what an expectation means.

README.md beside this file says it for every language; this is the same in Python.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

DECISIONS = Path(__file__).parent / "decisions"

_RELATIVE = re.compile(r"^([+-])(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"^-?\d+(?:\.\d+)?s$")
_MATCHERS = ({"atLeast", "atMost"}, {"atLeast"}, {"atMost"})
DIRECTIVES = frozenset({"absent", "present", "status", "fields"})
"""Keys of an expectation that are no fields of the response."""


class Case(NamedTuple):
    """One case, with what its file says for all of its cases."""

    file: str
    contract: str
    config: Mapping[str, Any]
    name: str
    why: str
    needs: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]

    @property
    def id(self) -> str:
        """A name that is unique among all files."""
        return f"{self.file}::{self.name}"


def documents() -> list[tuple[str, Any]]:
    """Every file's name and content, in order of the names."""
    return [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(DECISIONS.glob("*.json"))]


def load() -> list[Case]:
    """Every case of every file."""
    return [
        Case(
            file=name,
            contract=document["contract"],
            config=document["config"],
            name=case["name"],
            why=case["why"],
            needs=tuple(case.get("needs", ())),
            steps=tuple(case["steps"]),
        )
        for name, document in documents()
        for case in document["cases"]
    ]


def at(value: Any, now: datetime) -> Any:
    """Replace each relative time (`+3h`, `-2m`) under a key ending in `Time` by the RFC 3339 time it stands for."""
    if isinstance(value, list):
        return [at(item, now) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: absolute(item, now) if key.endswith("Time") and isinstance(item, str) else at(item, now)
        for key, item in value.items()
    }


def absolute(text: str, now: datetime) -> str:
    """One time: a relative one counted from `now`, any other unchanged."""
    match = _RELATIVE.match(text)
    if match is None:
        return text
    sign, number, unit = match.groups()
    moment = now + timedelta(seconds=float(sign + number) * _UNIT[unit])
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def mismatches(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """Say where a response, as proto3 JSON, is not what a case expects; an empty list: it is."""
    faults = list(_compare({key: value for key, value in expected.items() if key not in DIRECTIVES}, actual, ""))
    faults += [f"{path}: is there" for path in expected.get("absent", ()) if _at_path(actual, path)]
    faults += [f"{path}: is missing" for path in expected.get("present", ()) if not _at_path(actual, path)]
    return faults


def _at_path(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = message.get(name) if isinstance(message, Mapping) else None
    return message


def _compare(expected: Any, actual: Any, path: str) -> Iterator[str]:
    if isinstance(expected, Mapping) and set(expected) in _MATCHERS:
        if not _in_range(expected, actual):
            yield f"{path}: {actual} is not within {dict(expected)}"
    elif isinstance(expected, Mapping):
        for key, value in expected.items():
            below = actual.get(key) if isinstance(actual, Mapping) else None
            yield from _compare(value, below, f"{path}.{key}".lstrip("."))
    elif isinstance(expected, list):
        found = actual or []
        if not isinstance(found, list) or len(found) != len(expected):
            yield f"{path}: {actual} has not {len(expected)} elements"
            return
        for index, value in enumerate(expected):
            yield from _compare(value, found[index], f"{path}[{index}]")
    elif not (expected == actual or (not expected and not actual)):
        yield f"{path}: {actual!r} is not {expected!r}"


def _in_range(limits: Mapping[str, str], actual: Any) -> bool:
    """Whether a duration of proto3 JSON (`29.5s`) lies within both limits, themselves included."""
    if not isinstance(actual, str) or not _DURATION.match(actual):
        return False
    seconds = float(actual[:-1])
    low, high = limits.get("atLeast"), limits.get("atMost")
    return (low is None or seconds >= float(low[:-1])) and (high is None or seconds <= float(high[:-1]))
