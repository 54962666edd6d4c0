"""What every section of the configuration has in common, and how a section's shape is read off its class."""

import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidatorFunctionWrapHandler, field_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo


class Unreadable(Exception):
    """A check touched a value that has a fault of its own, so it cannot be told."""


class _Unreadable:
    """Stands in the place of a faulty value while the checks run: whatever is asked of it raises `Unreadable`.

    So every check is written for sound values alone, and one that cannot be made ends by itself. It must compare with
    `==`, never with `is`.
    """

    def _touched(self, *_arguments: object) -> NoReturn:
        raise Unreadable

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _touched
    __hash__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __getattr__ = _touched
    __add__ = __radd__ = __mul__ = __rmul__ = __str__ = __format__ = _touched


UNREADABLE: Any = _Unreadable()


class Section(BaseModel):
    """One mapping of the file: immutable, camelCase in the file and snake_case here, no unknown keys."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _let_unreadable_pass(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        return value if type(value) is _Unreadable else handler(value)


T = TypeVar("T")
OrEmpty = Annotated[T, BeforeValidator(lambda value: {} if value is None else value)]
"""A section or map with defaults: with nothing below its key it is as if the key were left out."""


class Shape(NamedTuple):
    """What a place of the tree holds: a section, a map or list of places, or (none of these) a single value."""

    section: type[Section] | None = None
    kind: Literal["section", "map", "list", "value"] = "value"
    item: Any = None


def shape_of(annotation: Any) -> Shape:
    """Read the shape off an annotation, seeing through `Annotated` and `| None`."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return shape_of(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Shape(annotation, "section")
    if origin in (dict, Mapping):
        return Shape(kind="map", item=arguments[1])
    if origin in (tuple, frozenset):
        return Shape(kind="list", item=arguments[0])
    inner = [argument for argument in arguments if argument is not type(None)]
    return shape_of(inner[0]) if len(inner) == 1 and type(None) in arguments else Shape()


def key_of(name: str, field: FieldInfo) -> str:
    """Return the key under which a field stands in the file."""
    return field.alias or name


def fields_by_key(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a section under their keys in the file."""
    return {key_of(name, field): field for name, field in section.model_fields.items()}


def steps(root: type[Section], location: tuple[str | int, ...]) -> Iterator[Shape]:
    """Yield the shape of each container on the way to `location`, the root's first."""
    annotation: Any = root
    for step in location:
        shape = shape_of(annotation)
        yield shape
        if shape.section is not None:
            field = fields_by_key(shape.section).get(str(step))
            if field is None:
                return
            annotation = field.annotation
        elif shape.kind in ("map", "list"):
            annotation = shape.item
        else:
            return
