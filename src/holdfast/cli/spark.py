"""Small drawings that fit into a line of text: the course of a number, and what a whole is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from rich.text import Text

_HEIGHTS: Final = "▁▂▃▄▅▆▇█"
# The parts of a step: a letterform for those who see no colour, and a colour. In the order in which they happen.
PARTS: Final = {
    "data": ("░", "yellow"), "compute": ("█", "green"), "communication": ("▒", "blue"), "optimizer": ("▓", "magenta"), "save": ("▚", "red"),
}  # fmt: skip


def sparkline(values: Sequence[float], cells: int) -> str:
    """The newest values, at most `cells` of them; of more, the mean of each stretch. What is not finite is a gap."""
    if not values or cells < 1:
        return ""
    count = min(cells, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    means = [_mean(values[first:last]) for first, last in pairwise(edges)]
    seen = [value for value in means if math.isfinite(value)]
    low, high = min(seen, default=0.0), max(seen, default=0.0)
    return "".join(_height(value, low, high) for value in means)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _height(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return " "
    share = (value - low) / (high - low) if high > low else 0.0
    return _HEIGHTS[min(len(_HEIGHTS) - 1, int(share * len(_HEIGHTS)))]


def split_bar(parts: Mapping[str, float], cells: int) -> Text:
    """What a step is made of. Every cell belongs to one part; what rounding leaves over goes to those it robbed most."""
    seconds = {name: max(0.0, parts[name]) for name in PARTS if math.isfinite(parts.get(name, math.nan))}
    whole = sum(seconds.values())
    if whole <= 0:
        return Text("–".ljust(cells), style="dim")
    exact = {name: part / whole * cells for name, part in seconds.items()}
    floors = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: floors[name] - exact[name])
    for name in by_rest[: cells - sum(floors.values())]:
        floors[name] += 1
    return Text.assemble(*((PARTS[name][0] * count, PARTS[name][1]) for name, count in floors.items() if count))


def legend() -> Text:
    pieces = [piece for name, (mark, colour) in PARTS.items() for piece in ((mark, colour), (f" {name}  ", "dim"))]
    return Text.assemble(*pieces)
