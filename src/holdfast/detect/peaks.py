"""How rare: how many of the highest peaks so far were as high as this.

Rows are taken in stretches, of each stretch its highest row is a peak, and the highest peaks are kept: an episode is one peak or a few, not fifty. A rank
has no unit, no tail to be fitted and needs no threshold of its own for each series; that is why one default serves them all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.period import Flags, Floats

KEPT = 32
_FEW = 10.0  # Peaks; while fewer are known, being higher than all of them says less: a doubling for each halving.
_MANY, _LENGTH_COUNTS = 512.0, 0.06  # A long history makes a record rarer, up to so many peaks, and by this share of a doubling for each halving.
_NEAR = np.float32(0.99)  # Of a peak is as high: what comes again and again is not a record each time by its last digit.
_FADES = np.float32(0.97)  # The record, each stretch: half of it in 700 rows or so.
_NONE = np.float32(-1)
_LOG2 = np.log2(1.0 + np.arange(KEPT + 1))


class Peaks:
    """Of some measures of `n` series at once. Measures are never negative."""

    def __init__(self, measures: int, n: int) -> None:
        self._kept = np.full((KEPT, 1, measures, n), _NONE)
        self._highest = np.full((measures, n), _NONE)  # Of this stretch,
        self._record = np.zeros((measures, n), dtype=np.float32)  # and of all before it.
        self._known = np.zeros(n)
        self._doubt = np.full(n, np.inf)

    @property
    def sure(self) -> Flags:
        """Whether enough is known of each series for a record to mean something."""
        return np.asarray(self._known >= _FEW)

    def look(self, measured: NDArray[np.float32], seen: Flags) -> Floats:
        """For each row and measure, how often one as high was met, in powers of two: 0 for a record, and more while little is known. Then take the rows in."""
        as_high = np.add.reduce((self._kept >= measured * _NEAR).view(np.uint8), axis=0, dtype=np.uint8)
        np.maximum(self._highest, np.where(seen[:, None], measured, _NONE).max(axis=0), out=self._highest)
        return np.asarray(_LOG2.take(as_high) + self._doubt)

    def times_record(self, measured: NDArray[np.float32]) -> NDArray[np.float32]:
        """How many times as high as the highest of all stretches before this one."""
        return np.asarray(measured / np.maximum(self._record, np.float32(1e-6)), dtype=np.float32)

    def end_stretch(self) -> None:
        lowest = self._kept.argmin(axis=0)[None]
        np.put_along_axis(self._kept, lowest, np.maximum(np.take_along_axis(self._kept, lowest, axis=0), self._highest), axis=0)
        np.maximum(self._record * _FADES, self._highest, out=self._record)
        self._known += self._highest[0] >= 0
        known = np.maximum(self._known, 0.1)
        self._doubt = np.log2(np.maximum(1.0, _FEW / known)) + _LENGTH_COUNTS * np.log2(np.maximum(1.0, _MANY / known))
        self._highest.fill(_NONE)
