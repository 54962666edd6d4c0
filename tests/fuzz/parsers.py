"""Fuzz targets that are plain functions: each takes any bytes, and raises nothing that its caller is not told of."""

import datetime as dt
import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from tidegate_collectors.facts import Source
from tidegate_collectors.payload import from_file
from tidegate_collectors.presets import PRESETS
from tidegate_server.config.load import parse
from tidegate_server.core.flow.tracecontext import (
    MAX_LENGTH,
    MAX_MEMBERS,
    parse_traceparent,
    parse_tracestate,
    write_tracestate,
)
from tidegate_server.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
NOW = dt.datetime(2026, 10, 20, 12, tzinfo=dt.UTC)


def configuration(data: bytes) -> None:
    """A configuration file, YAML, or JSON when the first byte is odd: it is taken, or every fault has a text."""
    is_json = bool(data[:1]) and data[0] % 2 == 1
    try:
        parse(data[1:], is_json=is_json)
    except ConfigurationError as error:
        faults = error.faults
    else:
        return
    assert faults
    assert all(faults)


def configuration_seeds() -> Iterator[bytes]:
    """The examples of the documentation."""
    for path in sorted((ROOT / "docs/examples").glob("*.yaml")):
        yield b"\0" + path.read_bytes()
    yield b'\1{"providers": {"a": {"kind": "local", "credential": "none", "models": {"m": {"contextWindow": 1}}}}}'


def traceparent(data: bytes) -> None:
    """A traceparent: what is taken can be passed on, and says the same again."""
    read = parse_traceparent(data.decode("latin-1"))
    if not isinstance(read, str):
        passed_on = read.child("00f067aa0ba902b7")
        assert len(passed_on) == 55
        again = parse_traceparent(passed_on)
        assert not isinstance(again, str)
        assert (again.trace_id, again.flags) == (read.trace_id, read.flags)


def traceparent_seeds() -> Iterator[bytes]:
    """The inputs of the W3C suite."""
    for case in json.loads((ROOT / "tests/vectors/tracecontext.json").read_text())["traceparent"]:
        yield str(case["traceparent"]).encode()


def tracestate(data: bytes) -> None:
    """A tracestate: what goes on keeps to the limits, has our member in front, and the others in their order."""
    read = parse_tracestate(data.decode("latin-1"))
    written = write_tracestate("value", read.others)
    assert len(written) <= MAX_LENGTH
    again = parse_tracestate(written)
    assert again.ours == ("value",)
    assert len(again.others) < MAX_MEMBERS
    left = iter(read.others)
    assert all(member in left for member in again.others)


def tracestate_seeds() -> Iterator[bytes]:
    """Members of others, of ours, too many, too long."""
    yield b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
    yield b"tidegate=abc.def, a@b=1 ,, x = y"
    yield b",".join(b"k%d=v" % i for i in range(40))
    yield b"a=" + b"x" * 256 + b",b=" + b"y" * 300


NAMES = tuple(sorted(PRESETS))


def collector(data: bytes) -> None:
    """Whatever a provider answers gives facts with finite numbers, or an error. The first byte names the preset."""
    if not data:
        return
    parse_answer = PRESETS[NAMES[data[0] % len(NAMES)]].parser()
    source = Source(provider="account", model="model")
    for _ in range(2):  # some remember what they saw
        reading = parse_answer(from_file(data[1:], NOW), source)
        assert isinstance(reading.error or "", str)
        for fact in reading.facts:
            _finite(fact)


def _finite(fact: Any) -> None:
    for field in fields(fact):
        value = getattr(fact, field.name)
        assert not isinstance(value, float) or math.isfinite(value), (fact, field.name)


def collector_seeds() -> Iterator[bytes]:
    """Every saved answer, read by every preset."""
    for path in sorted((ROOT / "tests/vectors/signals/samples").iterdir()):
        content = path.read_bytes()
        for index in range(len(NAMES)):
            if len(content) < 4096 or index % 7 == len(content) % 7:
                yield bytes([index]) + content
