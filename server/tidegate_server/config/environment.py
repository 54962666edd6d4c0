"""The environment mirror: `TIDEGATE_<PATH>` for every setting outside lists and maps (§2 of the contract).

`flow.maxDepth` is TIDEGATE_FLOW_MAX_DEPTH. The environment wins over the file, and TIDEGATE_… over the older names. An
empty variable counts as not set. `TIDEGATE_LISTEN` may hold several addresses with commas between them.
"""

import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from tidegate_server.config.base import Section, fields_by_key, shape_of
from tidegate_server.config.document import resolve
from tidegate_server.config.faults import Fault, Path, Tree, child, meant
from tidegate_server.config.model import Configuration
from tidegate_server.config.scalars import Leaf

PREFIX = "TIDEGATE_"
CLI_VARIABLES = frozenset({"TIDEGATE_CONFIG", "TIDEGATE_SERVER", "TIDEGATE_TOKEN_FILE"})
"""Variables with the prefix that the commands read; they are no settings."""

SEED_VARIABLES: Mapping[str, Path] = {
    "ROUTER_SHORTLIST_THRESHOLD": ("selection", "shortlistThreshold"),
    "ROUTER_SHORTLIST_SIZE": ("selection", "shortlistSize"),
    "ROUTER_MODEL": ("selection", "chat", "model"),
}
"""The agent selection's older names. ROUTER_MODEL is heeded where a chat endpoint is configured, for it makes none."""


CHAT: Path = ("selection", "chat")

SERVICE_LINK = re.compile(
    r"TIDEGATE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""What Kubernetes sets in every pod beside a service named tidegate or tidegate-…; ignored, or no pod would start."""


class Override(NamedTuple):
    """A setting given outside of the file: what it is called there, its path, its value."""

    source: str
    path: Path
    value: object


class Mirror(NamedTuple):
    """The variable of one setting. `is_text`: its value is taken as it is, never as a number or flag."""

    path: Path
    is_text: bool


def _leaf(annotation: Any, metadata: Iterable[object] = ()) -> Leaf | None:
    for item in metadata:
        if isinstance(item, Leaf):
            return item
    if typing.get_origin(annotation) is Annotated:
        return _leaf(typing.get_args(annotation)[0], annotation.__metadata__)
    found = [_leaf(argument) for argument in typing.get_args(annotation)]
    return next((leaf for leaf in found if leaf is not None), None)


def _mirrors(section: type[Section], path: Path) -> Iterator[tuple[str, Mirror]]:
    for key, field in fields_by_key(section).items():
        below = (*path, key)
        shape = shape_of(field.annotation)
        if shape.section is not None:
            yield from _mirrors(shape.section, below)
        elif shape.kind == "value" or below == ("listen",):
            leaf = _leaf(field.annotation, field.metadata)
            yield variable(below), Mirror(below, leaf is None or leaf.schema["type"] == "string")


def variable(path: Path) -> str:
    """Return the name of the variable that mirrors a path."""
    return PREFIX + "_".join(re.sub(r"([A-Z])", r"_\1", str(step)) for step in path).upper()


MIRRORS: Mapping[str, Mirror] = dict(_mirrors(Configuration, ()))
"""Every variable of the mirror, by name."""


def overrides(environment: Mapping[str, str], tree: Tree) -> tuple[list[Override], list[Fault]]:
    """Read the settings that the environment gives, the weaker ones first, and what is wrong with its names."""
    given = {name: text for name, text in environment.items() if text.strip()}
    names = sorted(name for name in given if name.startswith(PREFIX) and name not in CLI_VARIABLES)
    older = [Override(name, path, _value(path, given[name])) for name, path in SEED_VARIABLES.items() if name in given]
    found = [
        Override(name, MIRRORS[name].path, _value(MIRRORS[name].path, given[name])) for name in names if name in MIRRORS
    ]
    if child(child(tree, "selection"), "chat") is None and not any(o.path[:2] == CHAT for o in found):
        older = [override for override in older if override.path[:2] != CHAT]
    unknown = [name for name in names if name not in MIRRORS and not SERVICE_LINK.fullmatch(name)]
    return older + found, [Fault((name,), f"is no setting's variable{meant(name, MIRRORS)}") for name in unknown]


def _value(path: Path, text: str) -> object:
    if path == ("listen",):
        return [part.strip() for part in text.split(",")]
    return text if MIRRORS[variable(path)].is_text else resolve(text.strip())


def apply(given: Sequence[Override], tree: Tree) -> None:
    """Put the overrides into the tree, later ones over earlier ones. A faulty section of the file is left as it is."""
    for override in given:
        *sections, key = override.path
        place: object = tree
        for step in sections:
            if isinstance(place, dict) and place.get(str(step)) is None:
                place[str(step)] = {}
            place = child(place, step)
        if isinstance(place, dict):
            place[str(key)] = override.value
