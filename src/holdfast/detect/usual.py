"""What is usual: of several simple forecasts of a series, the one that has been closest so far.

    mean      of the last thousand rows or so
    trend     the same, carried on along its slope
    day       what was seen at this time of day
    week      what was seen at this time of the week
    period    what was seen at this place of the series' own period, should it have one (`period.py`)

Each is right for some series and does no harm to the others: the mean is left only for one whose error is a tenth smaller. It is learned at the end of
each stretch of rows, so no row is part of its own forecast. Timestamps tell the place in day and week and nothing else: one out of order, or a year ahead,
spoils nothing; without them those two wait.

Arrays are rows × (what) × series.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.period import Flags, Floats, Period

STRETCH_ROWS = 32
MEMORY_ROWS = 1000.0  # Of means and of errors.
_BETTER = 0.9  # The mean is left for a forecast whose error is at most this share of its own,
_TRIED_ROWS = 300  # over so many rows at least.
_PLACES = 288  # In a day, a week or a period: steps of five minutes of a day.
_RATE = 0.05  # Of a row in what is usual at its place; the first rows there count for more.
_CLOCKS_S = np.array([[86_400.0], [604_800.0]])


class Usual:
    """Of `n` series at once."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._period = Period(n)
        self.count = np.zeros(n)  # Rows learned.
        self._smooth = np.zeros((2, n))  # The mean, and the mean of the mean: the difference knows the slope.
        # What is usual at each place by each of the three clocks, NaN where nothing was seen. The last place is that of rows whose place is not known.
        self._at_place = np.full((3, _PLACES + 1, n), np.nan)
        self._visits = np.zeros((3, _PLACES + 1, n), dtype=np.float32)
        self._first_place = np.arange(3)[:, None] * (_PLACES + 1) * n + np.arange(n)
        self._errors = np.zeros((5, n))
        self._tried = np.zeros((5, n))
        self._best = np.zeros(n, dtype=np.intp)
        self._forecasts = np.full((STRETCH_ROWS, 5, n), np.nan)
        self._places = np.zeros((STRETCH_ROWS, 3, n), dtype=np.intp)

    @property
    def mean(self) -> Floats:
        return np.asarray(self._smooth[0])

    def look(self, at: Floats, first: int) -> Floats:
        """What is expected of each series at these times, those of the rows from `first` on of this stretch; NaN is a time that is not known."""
        rows = slice(first, first + len(at))
        share = at[:, None] % _CLOCKS_S / _CLOCKS_S
        places, forecasts = self._places[rows], self._forecasts[rows]
        places[:, :2] = np.where(share == share, share * _PLACES, _PLACES)
        places[:, 2] = self._period.places(rows, _PLACES)
        places *= self._n
        places += self._first_place
        forecasts[:, 0] = self._smooth[0]
        forecasts[:, 1] = 2 * self._smooth[0] - self._smooth[1]
        forecasts[:, 2:] = self._at_place.take(places)
        best = np.take_along_axis(forecasts, self._best[None, None], axis=1)[:, 0]
        return np.where(best == best, best, self._smooth[0])

    def learn(self, values: Floats, seen: Flags, wild: Floats) -> None:
        """Take the stretch in, each row at most `wild` away from each forecast."""
        changed = self._period.look(values - self._smooth[0], seen)
        errors = np.minimum(np.maximum(values[:, None] - self._forecasts, -wild), wild)
        known = seen[:, None] & (errors == errors)
        errors[~known] = 0.0
        rows = known.sum(axis=0)
        self.count += rows[0]
        share = np.minimum(1.0, rows[0] * np.maximum(1 / MEMORY_ROWS, 1 / np.maximum(self.count, 1)))
        self._smooth[0] += share * errors.sum(axis=0)[0] / np.maximum(rows[0], 1)
        self._smooth[1] += share * (self._smooth[0] - self._smooth[1])
        self._tried += rows
        share = rows * np.maximum(1 / MEMORY_ROWS, 1 / np.maximum(self._tried, 1))
        self._errors += share * (np.abs(errors).sum(axis=0) / np.maximum(rows, 1) - self._errors)
        for row in range(STRETCH_ROWS):
            self._learn_places(self._places[row], values[row], seen[row], wild)
        if changed is not None:
            self._at_place[2][:, changed] = np.nan
            self._visits[2][:, changed] = 0
            self._tried[4, changed] = 0
        judged = np.where(self._tried >= _TRIED_ROWS, self._errors, np.inf)
        judged[0] = _BETTER * self._errors[0]
        self._best = judged.argmin(axis=0)

    def _learn_places(self, places: NDArray[np.intp], values: Floats, seen: Flags, wild: Floats) -> None:
        """One row after the other, for several of a stretch may share a place."""
        here, visits = self._at_place.take(places), self._visits.take(places)
        errors = np.minimum(np.maximum(values - here, -wild), wild)
        taught = np.where(visits > 0, here + np.maximum(_RATE, 1 / (visits + 1)) * errors, values)
        self._at_place.put(places, np.where(seen, taught, here))
        self._visits.put(places, visits + seen)
        self._at_place[:, _PLACES] = np.nan
        self._visits[:, _PLACES] = 0
