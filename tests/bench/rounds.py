"""Comparing two things fairly on a machine that does other work, too: in turns, and by the median of the turns."""

from collections.abc import Callable
from statistics import median
from typing import NamedTuple, TypeVar

ROUNDS = 5

A = TypeVar("A")
B = TypeVar("B")


class Ratio(NamedTuple):
    """How many times as large A's figure is as B's: the median of the rounds, the smallest and the largest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


def ratio(pairs: list[tuple[float, float]]) -> Ratio:
    """The ratio of figures that were taken in turns."""
    all_of_them = [a / b for a, b in pairs]
    return Ratio(median(all_of_them), min(all_of_them), max(all_of_them))


def in_turns(a: Callable[[], A], b: Callable[[], B], rounds: int = ROUNDS) -> list[tuple[A, B]]:
    """A B A B …: what slows the machine for a while slows both."""
    return [(a(), b()) for _ in range(rounds)]
