"""Blocks: the whole past of a few numbers in a fixed number of rows, each the mean of equally many looks.

When all rows are taken, neighbours are put together and each stands for twice as many looks. So a run of a minute and one of a month take the same memory,
and what is asked of them is asked of parts of the run, not of minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Blocks:
    def __init__(self, width: int, size: int = 64) -> None:
        assert size % 2 == 0, f"{size} rows cannot be put together in pairs"
        self._rows = np.zeros((size, width))
        self._count = 0
        self._sum = np.zeros(width)
        self._filled = 0
        self.per = 1  # Looks in a block.

    def take(self, row: Sequence[float]) -> bool:
        """Take one look's numbers, all of them finite; whether they made a block whole."""
        self._sum += row
        self._filled += 1
        if self._filled < self.per:
            return False
        self._rows[self._count] = self._sum / self.per
        self._count += 1
        self._sum[:] = 0.0
        self._filled = 0
        if self._count == len(self._rows):
            self._count //= 2
            self._rows[: self._count] = (self._rows[0::2] + self._rows[1::2]) / 2
            self.per *= 2
        return True

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Floats:
        """One for each block, oldest first."""
        return self._rows[: self._count]


def leaning(values: Floats) -> float:
    """How sure it is that these rise (above 0) or fall (below 0), in standard deviations of what chance gives (Mann and Kendall's test). No size, no shape and
    no outlier matters, only how many pairs rise."""
    n = len(values)
    if n < 3:
        return 0.0
    pairs = np.sign(values[None, :] - values[:, None])[np.triu_indices(n, 1)].sum()
    return float(pairs) / sqrt(n * (n - 1) * (2 * n + 5) / 18)


def noise(values: Floats) -> float:
    """How much one differs from the middle of its neighbours, which no trend hides, as a standard deviation."""
    return 1.4826 * float(np.median(np.abs(np.diff(values, 2)))) / sqrt(6) if len(values) > 2 else 0.0
