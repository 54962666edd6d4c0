"""The JSON Schema of the configuration file, generated from the model for editors and other tools.

It covers the shape of a file. The checks that look at several settings are the server's own (`tidegate check`).
"""

import json
from typing import Any

from tidegate_server.config.base import Section, fields_by_key, shape_of
from tidegate_server.config.model import Configuration

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema, JSON Schema draft 2020-12, with each default as a file spells it."""
    schema = Configuration.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    _tidy(schema, Configuration)
    for section in _sections(Configuration):
        _tidy(definitions[section.__name__], section)
    return {"$schema": DIALECT, **schema, "$defs": definitions}


def json_schema_text() -> str:
    """Return the schema as the text of the committed file."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _sections(root: type[Section]) -> set[type[Section]]:
    found: set[type[Section]] = set()
    for field in root.model_fields.values():
        shape = shape_of(field.annotation)
        section = shape.section or (shape_of(shape.item).section if shape.item else None)
        if section is not None:
            found |= {section} | _sections(section)
    return found


def _tidy(schema: dict[str, Any], section: type[Section]) -> None:
    """Spell defaults as in a file, describe every setting, and drop titles, which only repeat names."""
    written = section.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    schema["title"] = section.__name__
    for key, field in fields_by_key(section).items():
        entry = schema["properties"][key]
        for generated in ("title", "default", "uniqueItems"):  # a set may be written with repetitions
            entry.pop(generated, None)
        entry["description"] = field.description
        default = None if field.is_required() else written[key]
        if not (default is None or default == [] or isinstance(default, dict)):
            entry["default"] = default
