"""Unusual value: a number over time that does what it did not do before.

Sees        values of any number of series, row by row, and the time of each row. Nothing is known of them beforehand; one default serves all.
Says        a score from 0 to 1 for each series on each row, by the rows up to it, and `unusual_value` where something is three times as far out as
            all that was seen of late: a spike, a jump, a level that shifted, a scatter that grew, a season that failed to come. One episode is one
            finding. After a score that is notable, the rows of the same episode have low ones, unless they are far more so.
Is silent   about trend, time of day, time of the week and a period of up to 256 rows, once they were seen (`usual.py`); about what comes as often as
            it always did, however wild (`peaks.py`); and about everything for its first rows: findings need 384.
Is wrong    when a series does something harmless for the first time, such as its first evaluation or its first holiday: it says so once, and less the
            next time. Where tails are so heavy that three times as far is ordinary, a finding now and then is chance.
Misses      a change that is slower than its memory of a thousand rows; a second episode much like a recent first; what is wrong from the first row on; and a
            number that is off only beside its peers, which is for a detector that compares them.
Costs       under half a microsecond a sample in batches of thousands; 16 kB of memory a series, whatever its length.

Four measures of each row, in units of what is usual for the series: how far the value is from its forecast, how far from the rows just before, how far to
one side the last rows lie, and how widely they scatter. Each is ranked among the highest peaks of its own history, and the mean of the four ranks is the score:
what is rare by several measures at once is seldom chance. Values that are missing, NaN or infinite are counted, score 0 and teach nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.detect.peaks import KEPT, Peaks
from holdfast.detect.period import Flags, Floats
from holdfast.detect.usual import MEMORY_ROWS, STRETCH_ROWS, Usual
from holdfast.domain.finding import Finding, Severity

NOTABLE = 0.44  # Of the score; on average six of the highest peaks so far were as high.
FAINT = 0.34  # Below this, every row is told as it is.
_MORE = 0.2  # Of the score: so much more notable is told within an episode, too.
_STANDS_OUT = 3.0  # Times the highest peak of late, by one measure at least, for a finding.
_JUMP_ROWS = 2.0  # "The rows just before",
_LAST_ROWS = 16.0  # and "the last rows": weights fall off by this many.
_QUIET_SHARE, _QUIET_ROWS_MIN, _QUIET_ROWS_MAX = 0.08, 30.0, 200.0  # An episode lasts this share of what was seen so far, within limits.
_WILD = 20.0  # A row farther out than so many usual deviations teaches no more than one that far out: a single wild reading is soon forgotten.
_SMALL, _ROUNDING = 1e-3, 1e-9  # Of the mean: what counts as a deviation where there was none so far; and what is none at all.
_VALUE_MAX = 1e100
_MEASURE_MAX = 1e6
_RANGE = 3.0  # Mean deviations to both sides make the range that is expected: about 98 in 100 rows of plain noise.

_SAYS = (
    "{} as far off as any of late",
    "a jump {} as big as any of late",
    "the last rows lie {} as far to one side as any of late",
    "the last rows scatter {} as widely as any of late",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding, and which row of those looked at, and which series, it is about."""

    row: int
    series: int
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One score for each row and series."""

    scores: Floats
    found: tuple[Found, ...] = ()


class Unusual:
    """Looks at `n` series at once. They may have names, which the findings then begin with."""

    def __init__(self, n: int, names: Sequence[str] = ()) -> None:
        assert n > 0 and len(names) in (0, n), f"{n} series and {len(names)} names"
        self._n, self._names = n, tuple(names)
        self._usual = Usual(n)
        self._peaks = Peaks(len(_SAYS), n)
        self.missing = np.zeros(n)  # Values that were no numbers.
        self._count = np.zeros(n)
        self._filled = 0  # Rows of this stretch,
        self._values = np.zeros((STRETCH_ROWS, n))  # their values,
        self._seen = np.zeros((STRETCH_ROWS, n), dtype=np.bool_)
        self._off = np.zeros((STRETCH_ROWS, 2, n))  # and how far each was from its forecast and from the rows just before.
        self._scales = np.zeros((2, n))  # How much of that is usual,
        self._scaled = np.zeros(n)  # by how many rows.
        self._running = np.zeros((3, n))  # The rows just before; then to which side the last rows lie, and how far,
        self._paces = np.array([[1 / _JUMP_ROWS], [1 / _LAST_ROWS], [1 / _LAST_ROWS]])  # each as fast as it follows.
        self._told = np.zeros((2, n))  # The last score that was told, faint or notable, and the last notable one,
        self._told_at = np.full((2, n), -np.inf)  # and when, by the count of rows.
        self._found_at = np.full(n, -np.inf)

    def look(self, at: ArrayLike, values: ArrayLike) -> Judged:
        """One row: `values` has one for each series; `at` is its time, or the time of each, in seconds since 1970."""
        judged = self.look_at_rows(np.asarray(at, dtype=np.float64)[None], np.asarray(values, dtype=np.float64)[None])
        return Judged(scores=judged.scores[0], found=judged.found)

    def look_at_rows(self, at: ArrayLike, values: ArrayLike) -> Judged:
        """Several rows, with the same outcome as one after the other, and sooner."""
        value, time = np.asarray(values, dtype=np.float64), np.asarray(at, dtype=np.float64)
        assert value.ndim == 2 and value.shape[1] == self._n and len(time) == len(value), f"{value.shape} values, {time.shape} times, {self._n} series"
        time = np.where(np.isfinite(time), time, np.nan)
        time = time[:, None] if time.ndim == 1 else time
        scores, found, row = np.zeros(value.shape), [], 0
        while row < len(value):
            rows = slice(row, min(len(value), row + STRETCH_ROWS - self._filled))
            scores[rows], new = self._look(time[rows], value[rows])
            found += [Found(row=one.row + row, series=one.series, finding=one.finding) for one in new]
            row = rows.stop
        return Judged(scores=scores, found=tuple(found))

    def _look(self, at: Floats, value: Floats) -> tuple[Floats, list[Found]]:
        """Rows of one stretch."""
        rows = slice(self._filled, self._filled + len(value))
        seen = np.isfinite(value)
        forecast = self._usual.look(at, self._filled)
        measured = self._measure(rows, value, seen, forecast)
        score = self._scores(measured, seen)
        count = self._count + np.add.accumulate(seen, axis=0)
        found: list[Found] = []
        for row in np.flatnonzero((score >= FAINT).any(axis=1)).tolist():
            found += self._tell(row, score[row], count[row], measured[row], at[row], value[row], forecast[row])
        self._count = count[-1]
        self.missing += len(value) - seen.sum(axis=0)
        self._filled = rows.stop
        if self._filled == STRETCH_ROWS:
            self._end_stretch()
        return score, found

    def _measure(self, rows: slice, value: Floats, seen: Flags, forecast: Floats) -> NDArray[np.float32]:
        """The four measures of each row."""
        least = _ROUNDING * np.abs(self._usual.mean) + 1e-15
        scales = np.maximum(self._scales, least)
        far = np.where(self._scaled > 0, _MEASURE_MAX * scales[0], _VALUE_MAX)
        value = np.where(seen, np.minimum(np.maximum(value, forecast - far), forecast + far), forecast)
        off = self._off[rows]
        self._values[rows], self._seen[rows] = value, seen
        np.subtract(value, forecast, out=off[:, 0])
        damped = np.arcsinh(off[:, 0] / scales[0])  # So that one spike among the last rows is not taken for a level.
        taken = np.stack([value, damped, np.abs(damped)], axis=1)
        pace = seen[:, None] * self._paces
        running = np.empty_like(taken)
        for row in range(len(value)):
            taken[row] -= self._running
            self._running = self._running + pace[row] * taken[row]
            running[row] = self._running
        off[:, 1] = taken[:, 0]
        return np.concatenate([np.minimum(np.abs(off) / scales, _MEASURE_MAX), np.sinh(np.abs(running[:, 1:]))], axis=1, dtype=np.float32)

    def _scores(self, measured: NDArray[np.float32], seen: Flags) -> Floats:
        ready = seen & (self._scaled > 0)  # Before there is a scale, nothing can be measured.
        met = self._peaks.look(measured, ready)
        return np.asarray(ready * np.maximum(0.0, 1.0 - np.add.reduce(met, axis=1) / (len(_SAYS) * np.log2(KEPT + 1))))

    def _tell(self, row: int, score: Floats, count: Floats, measured: NDArray[np.float32], at: Floats, value: Floats, forecast: Floats) -> list[Found]:
        """Of a row with a score worth telling: lower it where its episode was told already, and say what stands out."""
        quiet = np.minimum(np.maximum(_QUIET_SHARE * count, _QUIET_ROWS_MIN), _QUIET_ROWS_MAX)
        notable = score >= NOTABLE
        # What is faint does not hide what is notable behind it, and what is notable hides both.
        last, last_at = np.where(notable, self._told[1], self._told[0]), np.where(notable, self._told_at[1], self._told_at[0])
        again = (score >= FAINT) & (count - last_at <= quiet) & (score <= last + _MORE)
        for level, told in enumerate(((score >= FAINT) & ~again, notable & ~again)):
            self._told[level, told], self._told_at[level, told] = score[told], count[told]
        score[again] = FAINT / 2
        times = self._peaks.times_record(measured)
        new = np.flatnonzero(notable & self._peaks.sure & (times.max(axis=0) >= _STANDS_OUT) & (count - self._found_at > quiet))
        self._found_at[new] = count[new]
        at = np.broadcast_to(at, (self._n,))  # One time for all series, or one each.
        return [
            Found(row=row, series=one, finding=self._finding(one, float(at[one]), float(value[one]), float(forecast[one]), times[:, one].tolist()))
            for one in new.tolist()
        ]

    def _finding(self, one: int, at: float, value: float, forecast: float, times: list[float]) -> Finding:
        width = _RANGE * float(self._scales[0, one])
        says = [(many, text.format(f"{many:.1f} times" if many < 100 else "over a hundred times")) for many, text in zip(times, _SAYS, strict=True)]
        name = f"{self._names[one]}: " if self._names else ""
        return Finding(
            kind="unusual_value", severity=Severity.INFO, since=at if at == at else 0.0,
            because=f"{name}{value:.6g} was seen, {forecast - width:.6g} to {forecast + width:.6g} was expected: {max(says)[1]}",
            evidence=tuple(text for many, text in says if many >= 1),
        )  # fmt: skip

    def _end_stretch(self) -> None:
        """Learn from the rows of this stretch: their scale once there was a forecast for them, and what is usual."""
        begins = self._usual.count == 0
        wild = _WILD * np.maximum(self._scales, _SMALL * np.abs(self._usual.mean) + 1e-12)
        wild[:, self._scaled == 0] = np.inf  # It is too early to say.
        off = np.minimum(np.abs(self._off), wild) * self._seen[:, None]
        rows = np.where(begins, 0, self._seen.sum(axis=0))
        self._scaled += rows
        share = rows * np.maximum(1 / MEMORY_ROWS, 1 / np.maximum(self._scaled, 1))
        self._scales += share * (off.sum(axis=0) / np.maximum(rows, 1) - self._scales)
        self._usual.learn(self._values, self._seen, wild[0])
        self._peaks.end_stretch()
        self._running[1:, self._scaled <= rows] = 0.0  # What was measured without a scale says nothing.
        self._filled = 0
