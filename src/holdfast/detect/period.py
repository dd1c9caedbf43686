"""The period of a series, learned from its rows: the lag at which it is most like itself.

Looked for every so often in the last rows by their autocorrelation, beyond its first fall through zero: a slow series is like itself at every short lag,
and that is no period. Kept while it holds, so that what was learned by it is not thrown away for a neighbouring lag. One longer than half the window is not
found; days and weeks are known from the timestamps anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_WINDOW_ROWS = 512  # A whole number of stretches, like `_EVERY_ROWS`.
_LAG_MAX = _WINDOW_ROWS // 2  # So that a period was seen twice.
_EVERY_ROWS = 256
_FOUND, _KEPT = 0.6, 0.4  # Of perfect likeness: for a period to be believed, and to be kept.
_ALIKE = 0.05  # Likenesses that differ by less are the same: the shortest lag among them is the period, the others its multiples.
_VALUE_MAX = 1e15  # So that its square is a number.
_OUTLIER = 4.0  # Mean deviations; what is farther out counts as that far, for one spike would drown the rest.


class Period:
    """Of `n` series at once."""

    def __init__(self, n: int) -> None:
        self._ring = np.zeros((_WINDOW_ROWS, n), dtype=np.float32)
        self._seen = np.zeros(n)
        self._rows = 0
        self._lag = np.full(n, np.inf)  # Infinite: none was found.
        self._any = False

    def places(self, rows: slice, places: int) -> NDArray[np.intp] | int:
        """Where in its period each series is at these rows from here on, as one of so many places; `places` itself for one that has none."""
        if not self._any:
            return places
        row = self._rows + np.arange(rows.start, rows.stop)[:, None]
        return np.where(np.isinf(self._lag), places, row % self._lag / self._lag * places).astype(np.intp)

    def look(self, values: Floats, seen: Flags) -> NDArray[np.intp] | None:
        """Take a stretch of rows, as distances from their mean. Says which series have another period than before, whenever that was looked into."""
        start = self._rows % _WINDOW_ROWS
        self._ring[start : start + len(values)] = np.clip(values, -_VALUE_MAX, _VALUE_MAX)
        self._seen += seen.sum(axis=0)
        self._rows += len(values)
        if self._rows % _EVERY_ROWS or self._rows < _WINDOW_ROWS:
            return None
        lag = np.where(self._seen >= _WINDOW_ROWS, self._looked_for(), np.inf)
        changed = np.flatnonzero(lag != self._lag)
        self._lag, self._any = lag, bool(np.isfinite(lag).any())
        return changed

    def _looked_for(self) -> Floats:
        likeness = _likeness(np.roll(self._ring, -(self._rows % _WINDOW_ROWS), axis=0).T)
        series, lags = np.arange(len(likeness)), np.arange(_LAG_MAX + 1)
        peaks = np.where(np.logical_or.accumulate(likeness < 0, axis=1), likeness, -1.0)
        highest = peaks.max(axis=1)
        first = (peaks >= highest[:, None] - _ALIKE).argmax(axis=1)
        top = np.where(lags <= (first + first // 4)[:, None], peaks, -1.0).argmax(axis=1)  # The peak itself and not the way up to it.
        has = np.isfinite(self._lag)
        kept = has & (likeness[series, np.where(has, self._lag, 0).astype(np.intp)] >= np.maximum(_KEPT, highest - 4 * _ALIKE))
        return np.where(kept, self._lag, np.where(peaks[series, top] >= _FOUND, top, np.inf))


def _likeness(rows: NDArray[np.float32]) -> Floats:
    """Autocorrelation of each series for lags up to `_LAG_MAX`, each by as many rows as it has."""
    # One series after the other in memory: sums then go the same way however many there are, and a batch gives what each series gives alone.
    centred = np.array(rows, dtype=np.float64, order="C")
    centred -= centred.mean(axis=1, keepdims=True)
    limit = _OUTLIER * np.abs(centred).mean(axis=1, keepdims=True)
    centred = np.clip(centred, -limit, limit)
    centred -= centred.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * _WINDOW_ROWS, axis=1)
    sums = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, axis=1)[:, : _LAG_MAX + 1]
    means = sums / (_WINDOW_ROWS - np.arange(_LAG_MAX + 1))
    return np.asarray(means / np.where(means[:, :1] > 0, means[:, :1], 1.0))
