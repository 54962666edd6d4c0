"""From the text of a file to a plain tree: mappings with text keys, lists, text, numbers, true, false and null.

YAML is read by the core schema of YAML 1.2, so that the traps of 1.1 are none: `no` and `1:30` are text, and 017 is no
number. Refused are a key given twice, several documents, tags, merge keys, and what would grow beyond measure. JSON is
read by its own rules, which allow tabs. NaN and the infinities are read as they are; no setting takes them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from tidegate_server.config.faults import Fault, Path, Tree, spell_path
from tidegate_server.config.scalars import quoted
from tidegate_server.errors import ConfigurationError

BYTES_LIMIT = 1 << 20
DEPTH_LIMIT = 32
VALUES_LIMIT = 100_000
"""How many values a document may have, each alias counted with all that it stands for."""

DIGITS_LIMIT = 300
"""Whole numbers with more digits are read as infinite: no setting takes them, and a double cannot hold them."""


@dataclass(frozen=True)
class _Pairs:
    """A mapping as it is written, a key given twice included."""

    pairs: "list[tuple[str, _Node]]"


_Node: TypeAlias = "_Pairs | list[_Node] | str | int | float | bool | None"


def read_document(content: bytes, *, is_json: bool = False) -> tuple[Tree, list[Fault]]:
    """Read a file's content: its tree, and those faults that leave a tree to be checked.

    `is_json` holds the content to JSON; otherwise what starts with `{` is tried as JSON and then as YAML.
    Raises `ConfigurationError` when there is no tree.
    """
    if len(content) > BYTES_LIMIT:
        raise ConfigurationError([f"the file must have at most {BYTES_LIMIT} bytes (1 MiB), not {len(content)}"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"the file must be UTF-8, which its byte {error.start} is not"]) from None
    root = _read_json(text) if is_json else _read_either(text)
    if root is None:  # what a file looks like while somebody writes it, and never what an operator means
        raise ConfigurationError(["the file is empty; {} says that everything is left out"])
    planter = _Planter()
    tree = planter.plant(root, ())
    if not isinstance(tree, dict):
        raise ConfigurationError(["the file must be a mapping of settings"])
    return tree, planter.faults


class _Planter:
    """Makes the tree out of what was written, counting values and finding keys given twice."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._values = 0

    def plant(self, node: _Node, path: Path) -> object:
        self._values += 1
        if self._values > VALUES_LIMIT:
            raise ConfigurationError([f"the file must hold at most {VALUES_LIMIT} values, aliases written out"])
        if len(path) > DEPTH_LIMIT:
            raise ConfigurationError([f"{spell_path(path[:4])}: is nested deeper than {DEPTH_LIMIT} levels"])
        if isinstance(node, _Pairs):
            return self._mapping(node.pairs, path)
        if isinstance(node, list):
            return [self.plant(item, (*path, index)) for index, item in enumerate(node)]
        if isinstance(node, str) and not _is_text(node):
            self.faults.append(Fault(path, "must be text; half a surrogate pair is none"))
            return ""
        return node

    def _mapping(self, pairs: list[tuple[str, _Node]], path: Path) -> Tree:
        tree: Tree = {}
        for key, value in pairs:
            below = (*path, key)
            if not _is_text(key):
                self.faults.append(Fault(path, "has a key that is no text: half a surrogate pair"))
            elif key in tree:
                self.faults.append(Fault(below, "is given twice"))
            elif key == "<<":
                self.faults.append(Fault(below, "merge keys are not supported; write the keys out"))
            else:
                tree[key] = self.plant(value, below)
        return tree


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


def _read_either(text: str) -> _Node:
    if not text.lstrip().startswith("{"):
        return _read_yaml(text)
    try:
        return _read_json(text)
    except ConfigurationError as not_json:
        try:
            return _read_yaml(text)
        except ConfigurationError:
            raise not_json from None


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= DIGITS_LIMIT else float(digits)


def _read_json(text: str) -> _Node:
    try:
        root: _Node = json.loads(text, object_pairs_hook=_Pairs, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise ConfigurationError([f"line {error.lineno}, column {error.colno}: no JSON: {error.msg}"]) from None
    except RecursionError:
        raise ConfigurationError([f"the file is nested deeper than {DEPTH_LIMIT} levels"]) from None
    return root


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _read_yaml(text: str) -> _Node:
    try:
        return _Composer(iter(yaml.parse(text, Loader=_LOADER))).document()
    except yaml.reader.ReaderError as error:
        raise ConfigurationError([f"the file must not hold the character U+{_code(error.character):04X}"]) from None
    except yaml.MarkedYAMLError as error:
        raise _at(error.problem_mark, f"no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError):
        raise ConfigurationError(["the file is no YAML"]) from None


def _code(character: str | bytes | int) -> int:
    return character if isinstance(character, int) else ord(character)


def _at(mark: Any, text: str) -> ConfigurationError:
    """Say where a fault of the text is. `mark` is of one of two classes, by the parser that is installed; or None."""
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
    return ConfigurationError([f"{where}: {text}"])


class _Composer:
    """Composes nodes out of events. An anchor is known once its node is complete, so that nothing holds itself."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, _Node] = {}

    def document(self) -> _Node:
        """Return the only document's root; None for an empty file."""
        root: _Node = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _at(event.start_mark, "a second document starts here; the file must be one")
                root = self._node(next(self._events), 0)
        return root

    def _node(self, event: yaml.Event, depth: int) -> _Node:
        if depth > DEPTH_LIMIT:
            raise _at(event.start_mark, f"is nested deeper than {DEPTH_LIMIT} levels")
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in self._anchors:
                raise _at(event.start_mark, f"no anchor {quoted(str(anchor))} was completed before this alias")
            return self._anchors[anchor]
        if getattr(event, "tag", None) is not None:
            raise _at(event.start_mark, "tags are not supported; write the plain value")
        node = self._content(event, depth)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _content(self, event: yaml.Event, depth: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            return resolve(event.value) if event.implicit[0] else str(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._node(item, depth + 1) for item in _until(self._events, yaml.SequenceEndEvent)]
        pairs: list[tuple[str, _Node]] = []
        for key in _until(self._events, yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent) or key.tag is not None:
                raise _at(key.start_mark, "a key must be plain text")
            pairs.append((str(key.value), self._node(next(self._events), depth + 1)))
        return _Pairs(pairs)


def _until(events: Iterator[yaml.Event], end: type[yaml.Event]) -> Iterator[yaml.Event]:
    for event in events:
        if isinstance(event, end):
            return
        yield event


_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(text: str) -> str | int | float | bool | None:
    """Read a plain scalar by the core schema of YAML 1.2, without its octal and hexadecimal numbers."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return _whole(text)
    return float(text) if _FLOAT.fullmatch(text) else text
