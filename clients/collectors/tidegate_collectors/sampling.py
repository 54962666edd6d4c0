"""Runs a parser against a saved answer, offline: what `tidegate collector test` does."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from tidegate.v1 import types_pb2

from tidegate_collectors.facts import Reading, Source
from tidegate_collectors.payload import from_file
from tidegate_collectors.presets import Parse
from tidegate_collectors.vocabulary import record
from tidegate_collectors.wire import observations, timestamp

SERIES_STEP = timedelta(seconds=30)
_SERIES = re.compile(r"(?P<stem>.+-t)(?P<index>\d+)")


def read_sample(parse: Parse, sample: Path, source: Source, now: datetime) -> Reading:
    """Return the reading of a sample that arrived at `now`.

    `NAME-t1.EXT` is the second of a series: its forerunners are read before it, 30 s apart, so that what shows only in
    comparison (counters that stand still) shows. OSError: the file cannot be read.
    """
    series = forerunners(sample)
    for steps, earlier in zip(range(len(series), 0, -1), series, strict=True):
        parse(from_file(earlier.read_bytes(), now - steps * SERIES_STEP), source)
    return parse(from_file(sample.read_bytes(), now), source)


def forerunners(sample: Path) -> list[Path]:
    """Return the samples of the same series before this one, oldest first."""
    match = _SERIES.fullmatch(sample.stem)
    if not match:
        return []
    earlier = [sample.with_name(f"{match['stem']}{index}{sample.suffix}") for index in range(int(match["index"]))]
    return [path for path in earlier if path.is_file()]


def report(reading: Reading, source: Source, now: datetime) -> dict[str, Any]:
    """Return a reading as JSON: `observations` as on the wire, `facts` in the vocabulary of the vectors, `error`."""
    return {
        "observations": [MessageToDict(each) for each in _stamped(reading, source, now)],
        "facts": [record(fact) for fact in reading.facts],
        "error": reading.error or None,
        "dropped": list(reading.dropped),
        "retry_after_s": reading.retry_after,
    }


def expectation(path: Path, sample: Path) -> list[dict[str, Any]]:
    """Return the facts that a file expects of a sample.

    The file is a list of facts, an object with `facts`, or an object with `samples` (as the signal vectors have it), of
    which the one with this sample's name is taken. ValueError: it is none of them, or does not know the sample.
    """
    document: Any = json.loads(path.read_text())
    if isinstance(document, Mapping) and "samples" in document:
        document = next((entry for entry in document["samples"] if entry.get("sample") == sample.name), None)
        if document is None:
            raise ValueError(f"{path} expects nothing of {sample.name}")
    facts = document.get("facts") if isinstance(document, Mapping) else document
    if not isinstance(facts, list):
        raise ValueError(f"{path} holds no list of facts")
    return facts


def as_expected(source: Source, expected: Sequence[Mapping[str, Any]]) -> Source:
    """Fill in what a configuration would say, and an expectation takes for granted: the account's name and the model.

    Only what no answer could tell: the model of an engine, and of a request that failed.
    """
    names = [str(fact.get(key)) for fact in expected for key in ("target", "account", "subject") if key in fact]
    accounts = [name.split("/")[0] for name in names]
    models = [str(fact["model"]) for fact in expected if "model" in fact]
    for name in names:
        _, _, model = name.partition("/model:")
        models += [model] if model and "/provider:" not in name else []
    return replace(
        source,
        provider=source.provider or next(iter(accounts), ""),
        model=source.model or next(iter(models), ""),
    )


def _stamped(reading: Reading, source: Source, now: datetime) -> list[types_pb2.Observation]:
    result = []
    for fact in reading.facts:
        for observation in observations(fact, source):
            observation.observe_time.CopyFrom(timestamp(fact.observed_at or now))
            result.append(observation)
    return result
