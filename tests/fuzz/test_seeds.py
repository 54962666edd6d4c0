"""Every seed, and small changes of each: what `make fuzz` does for hours, for seconds and everywhere."""

import random
from collections.abc import Iterator

import pytest

from tests.fuzz.targets import TARGETS, Target

CHANGES = {"calls": 400, "collector": 1_500, "configuration": 300, "traceparent": 5_000, "tracestate": 2_000}
"""How many changed inputs are tried."""

WORDS = (b"\0", b"\xff" * 9, b"-1", b"NaN", b"1e999", b"\xe2\x80\xae", b"{}", b"[" * 50, b"\x80" * 11, b"9" * 400)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    chosen = TARGETS[request.param]
    yield chosen
    chosen.close()


def test_whatever_comes_in_is_answered(target: Target) -> None:
    seeds = list(target.seeds())
    for seed in seeds:
        target.run(seed)
    source = random.Random(f"{target.name} 1")
    for _ in range(CHANGES[target.name]):
        target.run(changed(source, source.choice(seeds)))


def changed(source: random.Random, data: bytes) -> bytes:
    """The input with a few bytes flipped, cut, doubled or replaced by a telling word."""
    for _ in range(source.randint(1, 4)):
        at, end = sorted((source.randint(0, len(data)), source.randint(0, len(data))))
        end = min(end, at + 64)
        match source.randint(0, 4):
            case 0:
                data = data[:at] + bytes([source.randrange(256)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:]
            case 3:
                data = data[:at] + source.choice(WORDS) + data[end:]
            case _:
                data = data[:at]
    return data
