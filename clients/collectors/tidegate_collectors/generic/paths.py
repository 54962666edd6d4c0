"""The path language of mappings: `$` (the document), `@` (the element at hand), names, `[n]` and `[*]`.

It is a small part of JSONPath, on purpose: no filters, no recursion, no scripts, so that a mapping cannot compute, and
every path can be checked when the file is loaded. (JSONPath libraries accept all of these, and no `@` at the root.)
"""

import re
from dataclasses import dataclass

from tidegate_collectors.payload import Json

_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d{1,6})\]|\[(\*)\]|\[\"([^\"\\]{1,200})\"\]|\['([^'\\]{1,200})'\]")
_MOST = 64
EACH = "*"


@dataclass(frozen=True, slots=True)
class Path:
    """One checked path."""

    text: str
    root: str
    steps: tuple[str | int, ...]

    @property
    def many(self) -> bool:
        """Whether it may name more than one value."""
        return EACH in self.steps

    def all(self, document: Json, element: Json = None) -> list[Json]:
        """Return the values it names, in order; a name or an index that is not there names none."""
        values: list[Json] = [document if self.root == "$" else element]
        for step in self.steps:
            values = [child for value in values for child in _children(value, step)]
        return values

    def one(self, document: Json, element: Json = None) -> tuple[bool, Json]:
        """Return whether the path names a value, and the (first) value."""
        values = self.all(document, element)
        return (True, values[0]) if values else (False, None)


def parse(text: object) -> Path:
    """Check a path. ValueError says what is wrong and where."""
    if not isinstance(text, str) or text[:1] not in ("$", "@"):
        raise ValueError("a path begins with $ (the document) or @ (the element)")
    steps: list[str | int] = []
    position = 1
    while position < len(text):
        match = _STEP.match(text, position)
        if not match:
            raise ValueError(f"no name, [n] or [*] at character {position + 1} of {text!r}")
        name, index, star, quoted, single = match.groups()
        steps.append(int(index) if index is not None else star or name or quoted or single)
        position = match.end()
    if len(steps) > _MOST:
        raise ValueError(f"more than {_MOST} steps")
    return Path(text, text[0], tuple(steps))


def _children(value: Json, step: str | int) -> list[Json]:
    if step == EACH:
        return value if isinstance(value, list) else []
    if isinstance(step, int):
        return value[step : step + 1] if isinstance(value, list) else []
    return [value[step]] if isinstance(value, dict) and step in value else []
