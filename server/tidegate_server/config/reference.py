"""The reference of every setting, generated from the model for the documentation."""

from collections.abc import Iterator
from typing import Any

from tidegate_server.config.base import Section, fields_by_key, shape_of
from tidegate_server.config.environment import MIRRORS, SEED_VARIABLES
from tidegate_server.config.model import Configuration

_HEAD = """\
# Configuration reference

One file, YAML or JSON; this page and `configuration.schema.json` are generated from the model that reads it.
Every key is optional unless it says "Required"; unknown keys are refused; all faults are reported at once.

- A length of time is a decimal number and one unit of `ms`, `s`, `m`, `h`, `d`: `300ms`, `2.5s`, `15m`, `5h`, `30d`.
- Sizes and counts are whole numbers (`32768.0` is one, `"32768"` is not); amounts of money are decimals in quotes.
- Names have 1 to 256 visible ASCII characters and no blanks, for they travel in HTTP headers.
- YAML is read by the core schema of YAML 1.2: `yes` and `1:30` are text. Tags, merge keys, a key given twice and more
  than one document are refused.
- A variable wins over the file, an option of `tidegate serve` over both. An empty variable counts as not set.
  `TIDEGATE_LISTEN` may hold several addresses with commas between them.
- The older names of the agent selection are understood, too; a `TIDEGATE_` name wins over them:
"""


def reference() -> str:
    """Return the reference as Markdown: a table for each section, with the variable of each setting that has one."""
    older = [f"  - `{name}` is `{'.'.join(map(str, path))}`." for name, path in SEED_VARIABLES.items()]
    variables = {".".join(map(str, mirror.path)): name for name, mirror in MIRRORS.items()}
    return "\n".join([_HEAD + "\n".join(older), *_sections(Configuration, "", variables)]) + "\n"


def _sections(section: type[Section], path: str, variables: dict[str, str]) -> Iterator[str]:
    yield from ("", f"## `{path}`" if path else "## The file", "", str(section.__doc__), "")
    yield from ("| key | meaning | variable |", "|---|---|---|")
    below: list[tuple[type[Section], str]] = []
    for key, field in fields_by_key(section).items():
        place = f"{path}.{key}" if path else key
        variable = f"`{variables[place]}`" if place in variables else ""
        required = "Required. " if field.is_required() else ""
        yield f"| `{key}` | {required}{field.description} | {variable} |"
        below += _below(field.annotation, place)
    for inner, place in below:
        yield from _sections(inner, place, variables)


def _below(annotation: Any, place: str) -> list[tuple[type[Section], str]]:
    shape = shape_of(annotation)
    if shape.section is not None:
        return [(shape.section, place)]
    inner = shape_of(shape.item).section if shape.item is not None else None
    return [] if inner is None else [(inner, f"{place}.NAME" if shape.kind == "map" else f"{place}[n]")]
