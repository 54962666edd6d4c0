"""Loading: a file and the environment become a checked `Configuration`, or every fault at once."""

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from tidegate_server.config.base import UNREADABLE, Shape, steps
from tidegate_server.config.checks import check
from tidegate_server.config.document import BYTES_LIMIT, read_document
from tidegate_server.config.environment import Override, apply, overrides
from tidegate_server.config.faults import Fault, Tree, at, in_order, shape_faults, spell_path
from tidegate_server.config.faults import Path as Place
from tidegate_server.config.model import Configuration
from tidegate_server.errors import ConfigurationError


def load(
    path: Path | str,
    environment: Mapping[str, str] | None = None,
    *,
    listen: Sequence[str] = (),
    state_directory: str | None = None,
) -> Configuration:
    """Load the file at `path`; a name that ends in `.json` holds it to JSON.

    `environment` is the process's own when None; it wins over the file, and `listen` and `state_directory`, the options
    of `tidegate serve`, win over both. Raises `ConfigurationError` with every fault, each with its path (or the name of
    the variable or option that it came from); a file that cannot be read is such a fault, too.
    """
    content = read_file(Path(path))
    options = [Override("--listen", ("listen",), list(listen))] if listen else []
    if state_directory is not None:
        options.append(Override("--state-directory", ("stateDirectory",), state_directory))
    variables = os.environ if environment is None else environment
    return parse(content, variables, options=options, is_json=Path(path).suffix.lower() == ".json")


def read_file(path: Path) -> bytes:
    """Read the file's content, one byte more than it may have at the most."""
    try:
        with path.open("rb") as file:
            return file.read(BYTES_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no valid path"
        raise ConfigurationError([f"{path}: cannot be read: {reason}"]) from None


def parse(
    content: bytes | str,
    environment: Mapping[str, str] | None = None,
    *,
    options: Sequence[Override] = (),
    is_json: bool = False,
) -> Configuration:
    """Check a file's content together with `environment` (None: none) and return the configuration.

    Raises `ConfigurationError` with every fault, in the order of the file, and never anything else.
    """
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    tree, faults = read_document(text, is_json=is_json)
    given, unknown_variables = overrides(environment or {}, tree)
    given = [*given, *options]
    apply(given, tree)
    configuration: Configuration | None
    try:
        configuration = Configuration.model_validate(tree)
    except ValidationError as error:
        faults += shape_faults(error, Configuration)
        configuration = _salvage(tree, error)
    if configuration is not None:
        faults += check(configuration, tree)
    if configuration is None or faults or unknown_variables:
        spelled = [_spell(fault, given, tree) for fault in [*in_order(faults, tree), *unknown_variables]]
        raise ConfigurationError(list(dict.fromkeys(spelled)))
    return configuration


def _spell(fault: Fault, given: Sequence[Override], tree: Tree) -> str:
    """Write a fault under its path, or under what gave the faulty value in place of the file."""
    for override in reversed(given):
        if fault.path[: len(override.path)] == override.path and at(tree, override.path) == override.value:
            return f"{override.source}: {fault.text}"
    return f"{spell_path(fault.path)}: {fault.text}"


def _salvage(tree: Tree, error: ValidationError) -> Configuration | None:
    """Read the configuration once more, with `UNREADABLE` for each faulty value, for the checks of all the rest."""
    sound = copy.deepcopy(tree)
    for details in error.errors(include_url=False, include_input=False):
        location = details["loc"]
        if details["type"] == "extra_forbidden":
            _take_out(sound, location)
        else:
            _put_unreadable(sound, location)
    try:
        return Configuration.model_validate(sound)
    except ValidationError:
        return None


def _put_unreadable(tree: Tree, location: Place) -> None:
    """Put `UNREADABLE` in the innermost section's field; an entry of a map is taken out instead."""
    shapes: list[Shape] = list(steps(Configuration, location))
    for depth in reversed(range(len(shapes))):
        parent, step = at(tree, location[:depth]), location[depth]
        if shapes[depth].kind == "map":
            _take_out(tree, location[: depth + 1])
            return
        if shapes[depth].kind == "section" and isinstance(parent, dict):
            parent[step] = UNREADABLE
            return


def _take_out(tree: Tree, location: Place) -> None:
    parent = at(tree, location[:-1])
    if isinstance(parent, dict):
        parent.pop(location[-1], None)
