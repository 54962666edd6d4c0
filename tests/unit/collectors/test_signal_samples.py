"""Every sample of a provider's answer gives exactly the facts that are expected of it, and no other.

A new sample needs no code: a file in `samples/`, its facts in `expected.json`, and, where its name does not begin with
a preset's, its preset in `presets.json`.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tidegate_collectors.facts import Source
from tidegate_collectors.presets import ALIASES, PRESETS, Preset, find
from tidegate_collectors.sampling import SERIES_STEP, as_expected, forerunners, read_sample, report
from tidegate_collectors.vocabulary import differences

VECTORS = Path(__file__).parents[2] / "vectors/signals"
EXPECTED = json.loads((VECTORS / "expected.json").read_text())
NAMED = json.loads((VECTORS / "presets.json").read_text())
NOW = datetime.fromisoformat(EXPECTED["now"])


def preset_of(sample: str) -> Preset:
    """Return the preset that a sample is named after: the longest name that it begins with."""
    names = [name for name in (*PRESETS, *ALIASES) if sample.startswith(name)]
    return find(NAMED.get(sample) or max(names, key=len))


def presets_of(case: dict[str, Any]) -> list[Preset]:
    """Return the sample's own preset, and the one that knows all shapes of its provider."""
    own = preset_of(case["sample"])
    every_shape = find(own.name.split("-")[0])
    return list(dict.fromkeys((own, every_shape)))


@pytest.mark.parametrize(
    ("case", "preset"),
    [
        pytest.param(case, preset, id=f"{case['sample']}-{preset.name}")
        for case in EXPECTED["samples"]
        for preset in presets_of(case)
    ],
)
def test_the_facts_are_exactly_those_expected(case: dict[str, Any], preset: Preset) -> None:
    sample = VECTORS / "samples" / case["sample"]
    now = NOW + len(forerunners(sample)) * SERIES_STEP
    source = as_expected(Source(provider=""), case["facts"])
    reading = read_sample(preset.parser(), sample, source, now)
    told = report(reading, source, now)
    assert differences(case["facts"], told["facts"]) == []
    assert bool(told["facts"]) != bool(told["error"]), "an answer without facts says why, one with facts is no error"
    assert bool(told["observations"]) == bool(told["facts"])


def test_every_sample_is_expected_and_every_expectation_has_its_sample() -> None:
    files = {path.name for path in (VECTORS / "samples").iterdir()}
    assert files == {case["sample"] for case in EXPECTED["samples"]}
