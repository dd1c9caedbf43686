"""A series drawn in a terminal, with marks below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

_HEIGHT = 8  # Lines.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # Of a braille letter, which is two dots wide and four high.


def plot(values: NDArray[np.float64], marked: Sequence[int], *, width: int, plain: bool = False) -> list[Text]:
    """Lines of `width` letters: the range of the values in each column, and below it the rows that are `marked`. `plain` does without braille."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return [Text("no row has a value", style="dim")]
    low, high = float(finite.min()), float(finite.max())
    labels = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, labels)) + 1
    columns = max(1, width - margin)
    dots = _drawn(values, low, high, 2 * columns).reshape(_HEIGHT, 4, columns, 2)
    cells = (dots * _DOTS[:, None]).sum(axis=(1, 3))
    sides = [labels[0], *[""] * (_HEIGHT - 2), labels[1]]
    lines = [
        Text.assemble((side.rjust(margin - 1) + " ", "dim"), "".join(("#" if cell else " ") if plain else chr(0x2800 + cell) for cell in row))
        for side, row in zip(sides, cells.tolist(), strict=True)
    ]
    if marked:
        at = {min(columns - 1, row * columns // len(values)) for row in marked}
        below = "".join(("^" if plain else "▲") if column in at else " " for column in range(columns))
        lines.append(Text.assemble(" " * margin, (below.rstrip(), "bold yellow")))
    return lines


def _drawn(values: NDArray[np.float64], low: float, high: float, across: int) -> NDArray[np.bool_]:
    """Which dots are set: in each column all from its lowest value to its highest, joined to the column before."""
    height = 4 * _HEIGHT
    # Halved, because the difference of two large numbers may be infinite.
    level = np.clip((values / 2 - low / 2) / max(high / 2 - low / 2, 1e-300), 0.0, 1.0) * (height - 1)
    dots = np.zeros((height, across), dtype=np.bool_)
    edges = np.arange(across + 1) * len(values) // across
    last: float | None = None
    for column in range(across):
        inside = level[edges[column] : max(edges[column + 1], edges[column] + 1)]
        inside = inside[np.isfinite(inside)]
        if not len(inside):
            last = None
            continue
        joined = inside if last is None else np.append(inside, last)
        top, bottom = height - 1 - round(float(joined.max())), height - 1 - round(float(joined.min()))
        dots[top : bottom + 1, column] = True
        last = float(inside[-1])
    return dots
