"""Decision vectors: reading them, running their steps, comparing with what they expect (tests/vectors/README.md)."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

DIRECTORY = Path(__file__).resolve().parent.parent / "vectors" / "decisions"
Json = dict[str, Any]

_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class Case:
    """One case with its file."""

    file: str
    config: Json
    name: str
    steps: list[Json]
    needs: frozenset[str]

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


@dataclass(frozen=True)
class Rejected:
    """A call that ended with a status."""

    status: str
    fields: list[str]


class Driver(Protocol):
    """What runs the steps: the core, or a server."""

    async def report(self, collector: str, observations: list[Json], retract: Json | None) -> list[Json]:
        """Report; the result of each item in proto3 JSON."""
        ...

    async def admit(self, request: Json) -> Json | Rejected:
        """Admit; the response in proto3 JSON."""
        ...

    async def pin(self, request: Json) -> Json | Rejected:
        """Pin."""
        ...

    async def reload(self, config: Json) -> None:
        """Serve with another configuration."""
        ...

    async def retire(self, request: Json) -> None:
        """Retire pins."""
        ...

    async def clear(self, request: Json) -> None:
        """Clear blockers."""
        ...

    async def corrupt_pin(self, model: str, worker_id: str) -> None:
        """Damage a stored pin."""
        ...


def files() -> list[Path]:
    """The vector files."""
    return sorted(DIRECTORY.glob("*.json"))


def cases(path: Path) -> Iterator[Case]:
    """The cases of a file."""
    document = json.loads(path.read_text())
    for case in document["cases"]:
        yield Case(path.stem, document["config"], case["name"], case["steps"], frozenset(case.get("needs", ())))


async def run(case: Case, driver: Driver, now: datetime) -> None:
    """Run every step; AssertionError at the first that does not do what is expected."""
    for step in resolved(case.steps, now):
        collector = step.get("collector", "default")
        if "report" in step:
            results = await driver.report(collector, step["report"], None)
            if "expectResults" in step:
                assert results == step["expectResults"], f"{case}: results"
        elif "retract" in step:
            await driver.report(collector, [], step["retract"])
        elif "admit" in step:
            compare(await driver.admit(step["admit"]), step["expect"], str(case))
        elif "pin" in step:
            compare(await driver.pin(step["pin"]), step["expect"], str(case))
        elif "reload" in step:
            await driver.reload(merge_patch(case.config, step["reload"]))
        elif "retire" in step:
            await driver.retire(step["retire"])
        elif "clear" in step:
            await driver.clear(step["clear"])
        elif "corruptPin" in step:
            await driver.corrupt_pin(step["corruptPin"]["model"], step["corruptPin"]["workerId"])
        else:
            raise AssertionError(f"{case}: a step of no known kind: {sorted(step)}")


def resolved(value: Any, now: datetime, key: str = "") -> Any:
    """The same with relative times replaced."""
    if isinstance(value, Mapping):
        return {name: resolved(item, now, name) for name, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, now) for item in value]
    match = _RELATIVE.fullmatch(value) if key.endswith("Time") and isinstance(value, str) else None
    if match is None:
        return value
    sign, amount, unit = match.groups()
    shift = timedelta(seconds=float(amount) * _UNITS[unit] * (-1 if sign == "-" else 1))
    return (now + shift).astimezone(UTC).isoformat().replace("+00:00", "Z")


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def compare(got: Json | Rejected, expect: Json, where: str) -> None:
    """AssertionError unless the response is what was expected."""
    if "status" in expect:
        assert isinstance(got, Rejected), f"{where}: expected {expect['status']}, got {got}"
        assert got.status == expect["status"], where
        if "fields" in expect:
            assert sorted(got.fields) == sorted(expect["fields"]), where
        return
    assert not isinstance(got, Rejected), f"{where}: ended with {got}"
    for path in expect.get("absent", ()):
        assert not _at(got, path), f"{where}: {path} should be absent, is {_at(got, path)!r}"
    for path in expect.get("present", ()):
        assert _at(got, path), f"{where}: {path} should be present in {got}"
    _match(got, {k: v for k, v in expect.items() if k not in ("absent", "present")}, where)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _match(got: Any, expect: Any, where: str) -> None:
    if isinstance(expect, Mapping) and ("atLeast" in expect or "atMost" in expect):
        assert got is not None, f"{where}: is missing"
        assert _seconds(expect.get("atLeast", "0s")) <= _seconds(got) <= _seconds(expect.get("atMost", "1e18s")), (
            f"{where}: {got} is not within {expect}"
        )
    elif isinstance(expect, Mapping):
        for key, value in expect.items():
            _match((got or {}).get(key), value, f"{where}.{key}")
    elif isinstance(expect, list):
        assert len(got or []) == len(expect), f"{where}: {got} has not {len(expect)} items"
        for index, value in enumerate(expect):
            _match(got[index], value, f"{where}[{index}]")
    elif expect in (False, 0, "") and got is None:
        return
    else:
        assert _plain(got) == _plain(expect), f"{where}: expected {expect!r}, got {got!r}"


def _plain(value: Any) -> Any:
    """proto3 JSON writes int64 as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))
