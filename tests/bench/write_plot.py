"""The plot of docs/performance.md, drawn from what the other benchmarks kept.

Bars are ratios to the equal handler with the smallest and the largest round, and a mark at the aim; lines are the cost
of a call as something grows, as a multiple of the least. Run last, by `python -m tests.bench write_plot`.
"""

import json
import math
import shutil
from collections.abc import Iterator
from html import escape
from typing import Any

from tests.bench import calls, results

PLOT = results.ROOT / "docs" / "performance.svg"
DATA = results.ROOT / "docs" / "performance.json"
WIDTH, LEFT, BAR = 760, 150, 24
CHART = WIDTH - LEFT - 40
COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#8d6a9f", "#b08900")


def bars(figures: dict[str, Any], top: int) -> Iterator[str]:
    """Calls a second as a share of the equal handler's."""
    names = [name for name in figures if "cpu" in figures[name]]
    yield _text(LEFT, top - 12, "calls/s as a share of an equal handler's: median, and all rounds", weight="bold")
    for row, name in enumerate(names):
        y, found = top + row * BAR, figures[name]["ratio"]
        yield _text(LEFT - 8, y + 12, name, anchor="end")
        yield f'<rect x="{LEFT}" y="{y}" width="{_across(found["median"]):.0f}" height="16" fill="{COLOURS[0]}"/>'
        low, high = (LEFT + _across(found[end]) for end in ("low", "high"))
        yield f'<path d="M{low:.0f} {y + 8}H{high:.0f}" stroke="#222" stroke-width="1.5"/>'
        if name in calls.AIMS:
            aim = LEFT + _across(calls.AIMS[name])
            yield f'<path d="M{aim:.0f} {y - 3}v22" stroke="{COLOURS[1]}" stroke-width="2"/>'
        yield _text(LEFT + _across(max(1.0, found["high"])) + 6, y + 12, f"{found['median']:.2f}")


def _across(share: float) -> float:
    return min(share, 1.1) * (CHART - 40) / 1.1


def lines(figures: dict[str, dict[str, float]], top: int) -> Iterator[str]:
    """The cost of a call as something grows."""
    height, most = 180, 3.0
    yield _text(LEFT, top - 12, "cost of a call as something grows, the least of it being 1", weight="bold")
    for level in (1.0, 2.0, 3.0):
        y = top + height - level / most * height
        yield f'<path d="M{LEFT} {y:.0f}h{CHART}" stroke="#ddd"/>' + _text(
            LEFT - 8, y + 4, f"{level:.0f}", anchor="end"
        )
    for decade in range(1, 8):
        x = LEFT + decade / 7 * CHART
        yield _text(x, top + height + 16, f"10^{decade}", anchor="middle")
    for number, (name, costs) in enumerate(figures.items()):
        least = next(iter(costs.values()))
        points = [
            (LEFT + math.log10(int(size)) / 7 * CHART, top + height - min(most, cost / least) / most * height)
            for size, cost in costs.items()
        ]
        path = "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
        colour = COLOURS[number % len(COLOURS)]
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield _text(points[-1][0] + 5, points[-1][1] + 4 + 4 * number, name, fill=colour)


def _text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal", fill: str = "#222") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(words)}</text>'


def main() -> None:
    """Draw what there is."""
    found = results.load()
    parts: list[str] = []
    top = 40
    if "calls" in found:
        parts += bars(found["calls"]["figures"], top)
        top += BAR * len(found["calls"]["figures"]) + 40
    if "growth" in found:
        parts += lines(found["growth"]["figures"], top)
        top += 230
    commit = ", ".join(sorted({entry["commit"] for entry in found.values()}))
    parts.append(_text(LEFT, top, f"measured at {commit}", fill="#777"))
    size = f'width="{WIDTH}" height="{top + 20}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    background = f'<rect {size} fill="#fff"/>'
    PLOT.write_text("\n".join((head, background, *parts, "</svg>")) + "\n")
    shutil.copy(results.FILE, DATA)
    print(
        f"{PLOT.relative_to(results.ROOT)}, {DATA.relative_to(results.ROOT)}: {', '.join(json.loads(DATA.read_text()))}"
    )


if __name__ == "__main__":
    main()
