"""The page about collectors names every preset and every setting, and its examples load."""

import re
from pathlib import Path

import yaml
from tidegate_collectors.config import Entry, check
from tidegate_collectors.presets import PRESETS

PAGE = (Path(__file__).parents[3] / "docs/collectors.md").read_text()


def test_every_preset_has_its_row() -> None:
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M))
    assert set(PRESETS) <= rows
    for preset in PRESETS.values():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{preset.name}` |")]
        assert ("opt-in" in row) is not preset.official


def test_every_setting_of_a_collector_is_explained() -> None:
    assert [name for name in Entry.model_fields if f"`{name}`" not in PAGE] == []


def test_the_examples_load() -> None:
    examples = re.findall(r"```yaml\n(.+?)```", PAGE, re.S)
    assert len(examples) == 2
    for example in examples:
        check(yaml.safe_load(example))
