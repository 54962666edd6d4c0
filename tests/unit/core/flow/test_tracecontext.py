"""Trace context: the published vectors, and what this server adds to a tracestate."""

import json
from pathlib import Path
from typing import Any

import pytest
from tidegate_server.core.flow.tracecontext import (
    MAX_LENGTH,
    Traceparent,
    parse_traceparent,
    parse_tracestate,
    write_tracestate,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "vectors" / "tracecontext.json").read_text(encoding="utf-8")
)
HOP = "00f067aa0ba902b7"


@pytest.mark.parametrize("case", VECTORS["traceparent"], ids=lambda case: case["name"])
def test_a_traceparent_is_read_as_the_text_says(case: dict[str, Any]) -> None:
    parsed = parse_traceparent(case["traceparent"])
    assert isinstance(parsed, Traceparent) is case["valid"], parsed
    if isinstance(parsed, Traceparent):
        assert (parsed.trace_id, parsed.parent_id) == (case["trace_id"], case["parent_id"])
        flags = case.get("passed_flags", "01")
        assert parsed.child(HOP) == f"00-{case['trace_id']}-{HOP}-{flags}"


@pytest.mark.parametrize("case", VECTORS["tracestate"], ids=lambda case: case["name"])
def test_a_tracestate_is_read_as_the_text_says(case: dict[str, Any]) -> None:
    assert list(parse_tracestate(",".join(case["headers"])).others) == case["kept"]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("", ()),
        ("tidegate=abc", ("abc",)),
        ("foo=1, \ttidegate=abc ,bar=2", ("abc",)),
        ("tidegate=abc,tidegate=def", ("abc", "def")),
        ("FOO=broken,tidegate=abc", ("abc",)),
        ("tidegate=", ("",)),
        ("tidegate=" + "x" * 300, ("x" * 300,)),
        ("xtidegate=1,tidegatex=2,a@tidegate=3", ()),
        ("foo=1," * 20_000 + "tidegate=abc", ("abc",)),
    ],
)
def test_our_member_is_found_in_whatever_surrounds_it(text: str, ours: tuple[str, ...]) -> None:
    assert parse_tracestate(text).ours == ours
    assert not any(member.startswith("tidegate=") for member in parse_tracestate(text).others)


def test_our_member_moves_to_the_front_and_the_others_keep_their_order() -> None:
    others = parse_tracestate("rojo=1,tidegate=old,congo=2").others
    assert write_tracestate("new", others) == "tidegate=new,rojo=1,congo=2"


def test_with_32_others_the_last_one_goes() -> None:
    others = tuple(f"k{i}=v" for i in range(32))
    assert write_tracestate("new", others).split(",") == ["tidegate=new", *others[:31]]


def test_when_too_long_large_members_go_first_then_the_last_ones() -> None:
    small = tuple(f"s{i}={'x' * 100}" for i in range(15))
    large = tuple(f"l{i}={'x' * 256}" for i in range(15))
    members = write_tracestate("v" * 256, (*large, *small)).split(",")
    kept_large = [member for member in members if member.startswith("l")]
    assert [member for member in members if member.startswith("s")] == list(small)
    assert kept_large == list(large[: len(kept_large)])
    assert len(",".join(members)) <= MAX_LENGTH

    names = tuple(f"{'k' * 120}{i:03}={'v' * 200}" for i in range(31))
    written = write_tracestate("v" * 256, names)
    assert len(written) <= MAX_LENGTH < len(written) + len(names[0]) + 1
    assert written.split(",")[1:] == list(names[: written.count(",")])
