"""The JSON Schema: committed as generated, right for good files, and every setting described."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tidegate_server.config import MIRRORS, Configuration, json_schema, json_schema_text, reference
from tidegate_server.config.document import read_document
from tidegate_server.config.scalars import duration

GOOD = Path(__file__).parent / "good"
COMMITTED = Path(__file__).parents[3] / "docs" / "configuration.schema.json"


def test_the_committed_schema_is_the_generated_one() -> None:
    assert COMMITTED.read_text() == json_schema_text(), "run `make proto`"


def test_the_committed_reference_is_the_generated_one_and_names_every_setting() -> None:
    text = COMMITTED.with_name("configuration-reference.md").read_text()
    assert text == reference(), "run `make proto`"
    assert [name for name in MIRRORS if f"`{name}`" not in text] == []
    assert "| `purpose` | Required. " in text


def test_the_schema_is_one() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", sorted(GOOD.iterdir()), ids=lambda path: path.name)
def test_good_fixtures_are_valid(path: Path) -> None:
    tree, faults = read_document(path.read_bytes())
    assert not faults
    if path.name == "spellings.yaml":
        tree = {key: value for key, value in tree.items() if value is not None}  # a key left empty is a courtesy
    assert [error.message for error in Draft202012Validator(json_schema()).iter_errors(tree)] == []


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for section in [schema, *schema["$defs"].values()]:
        yield from ((f"{section['title']}.{key}", entry) for key, entry in section["properties"].items())


def test_every_setting_says_what_it_means_and_its_default() -> None:
    for name, entry in properties(json_schema()):
        assert entry["description"].endswith("."), name
        if isinstance(default := entry.get("default"), str | int | float):
            said = re.search(r"Default: `?(\S+?)`?(\.| \()(\s|$|.*\)\.$)", entry["description"])
            assert said, name
            assert meaning(said[1]) == meaning(default), name


def meaning(spelled: object) -> object:
    """A duration as nanoseconds, a path without its dot, a number or flag as text without a fraction."""
    with suppress(ValueError):
        return duration(spelled)
    return str(spelled).lower().removeprefix("./").removesuffix(".0")


def test_defaults_in_the_schema_are_spelled_as_a_file_spells_them() -> None:
    schema = json_schema()
    assert schema["properties"]["coldWait"]["default"] == "2.5s"
    assert schema["properties"]["listen"]["default"] == ["127.0.0.1:50051"]
    assert schema["$defs"]["Admin"]["properties"]["listen"]["default"] == "127.0.0.1:9464"
    assert schema["$defs"]["RouteSettings"]["properties"]["paidOn"]["default"] == [
        "ACCOUNT_DISABLED", "QUOTA_BELOW_RESERVE", "QUOTA_EXHAUSTED"
    ]  # fmt: skip


def test_what_is_written_is_read_again() -> None:
    """`model_dump` spells a configuration as a file would, so the defaults of the schema are valid values."""
    written = Configuration().model_dump(mode="json", by_alias=True, exclude_none=True)
    assert Configuration.model_validate(written) == Configuration()
    Draft202012Validator(json_schema()).validate(written)
