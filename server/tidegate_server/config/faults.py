"""Faults: where they are, and what is said of them, in the contract's form."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tidegate_server.config.base import Section, fields_by_key, steps
from tidegate_server.config.scalars import kind_of, quoted

Path: TypeAlias = tuple[str | int, ...]
Tree: TypeAlias = dict[str, object]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Fault(NamedTuple):
    """One thing that is wrong with a configuration."""

    path: Path
    text: str


def spell_path(path: Path) -> str:
    """Write a path as in `managedRouting.routes["managed/routine"].candidates[2]`."""
    spelled = ""
    for step in path:
        if isinstance(step, int):
            spelled += f"[{step}]"
        elif _IDENTIFIER.fullmatch(step):
            spelled += f".{step}" if spelled else step
        else:
            spelled += f"[{quoted(step)}]"
    return spelled


def meant(written: str, known: Iterable[str]) -> str:
    """Return `; did you mean "…"?` for the known word closest to the written one, or nothing."""
    close = difflib.get_close_matches(written, list(known), n=1, cutoff=0.6)
    return f"; did you mean {quoted(close[0])}?" if close else ""


def shape_faults(error: ValidationError, root: type[Section]) -> list[Fault]:
    """Turn what pydantic found into faults."""
    return [_shape_fault(details, root) for details in error.errors(include_url=False, include_context=True)]


def _shape_fault(details: ErrorDetails, root: type[Section]) -> Fault:
    path = details["loc"]
    kind = details["type"]
    if kind == "leaf":
        return Fault(path, details["msg"])
    if kind == "missing":
        return Fault(path, f"is missing{_about(root, path)}")
    if kind == "extra_forbidden":
        return Fault(path, f"is no known key{_allowed(root, path)}")
    if kind in ("tuple_type", "frozen_set_type"):
        return Fault(path, f"must be a list, not {kind_of(details['input'])}")
    if kind in ("model_type", "mapping_type", "dict_type"):
        return Fault(path, f"must be a mapping, not {kind_of(details['input'])}")
    return Fault(path, details["msg"])


def within(location: Path, tree: Tree) -> Path:
    """Leave out an index into what the file has as a single value: `listen` for `listen[0]`."""
    value: object = tree
    for depth, step in enumerate(location):
        if isinstance(step, int) and not isinstance(value, list):
            return location[:depth]
        value = child(value, step)
    return location


def _section_at(root: type[Section], path: Path) -> type[Section] | None:
    *_, last = steps(root, path)
    return last.section


def _allowed(root: type[Section], path: Path) -> str:
    section = _section_at(root, path)
    return meant(str(path[-1]), fields_by_key(section)) if section else ""


def _about(root: type[Section], path: Path) -> str:
    section = _section_at(root, path)
    field = fields_by_key(section).get(str(path[-1])) if section else None
    if field is None or not field.description:
        return ""
    return f": {field.description.partition('. ')[0].rstrip('.')}"


def child(value: object, step: str | int) -> object:
    """Return what stands under a key or index, None where there is nothing."""
    if isinstance(value, Mapping) and isinstance(step, str):
        return value.get(step)
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(step, int):
        return value[step] if step < len(value) else None
    return None


def at(tree: Tree, path: Path) -> object:
    """Return what stands at a path, None where there is nothing."""
    value: object = tree
    for step in path:
        value = child(value, step)
    return value


def keys_at(tree: Tree, path: Path) -> list[str]:
    """Return the keys of the mapping at a path; none where there is no mapping."""
    value = at(tree, path)
    return list(value) if isinstance(value, dict) else []


def in_order(faults: Collection[Fault], tree: Tree) -> list[Fault]:
    """Sort faults by their place in the file; what is missing comes after what is there. Each is kept once."""
    placed = dict.fromkeys(Fault(within(fault.path, tree), fault.text) for fault in faults)
    return sorted(placed, key=lambda fault: (_position(fault.path, tree), spell_path(fault.path)))


def _position(path: Path, tree: Tree) -> list[int]:
    value: object = tree
    position = []
    for step in path:
        if isinstance(value, Mapping):
            keys = list(value)
            position.append(keys.index(step) if step in keys else len(keys))
        elif isinstance(step, int):
            position.append(step)
        value = child(value, step)
    return position
