"""The last hour of every series, in rings of a fixed size: what rules and detectors look back on.

    level     one row is    rows   reaches back     a row holds
    seconds   1 s           64     1 min            the reading (of a counter: how much it grew since the one before)
    tens      10 s          32     5 min            sum, smallest, largest and number of readings
    minutes   1 min         62     1 h              the same

Costs       1,507 bytes a series and no more, however long it runs: 500,000 series take 0.8 to 1.0 GB, the 300 of a small job half a megabyte. A row of 50
            readings is taken in some ten microseconds; every ten seconds the oldest ten of the second level are folded into one of the next.
Window      `(now - window, now]`, in whole seconds. One longer than a minute begins at a multiple of ten seconds, one longer than five minutes at a whole
            minute, at or before its beginning.
Readings    count at the time they were taken. What is not finite (or beyond 3.4e38) is no reading: it is counted, and only `is_not_finite`
            sees it. Refused and counted: what is not newer than the last of its series, what comes later than `GRACE_S` after its ten seconds
            ended, what is of the future by more than `FUTURE_S`, and a series beyond `series_max`.
Counters    grow by the difference to the reading before; a smaller one began again at 0. The first reading, and the first after a silence of `GAP_S`, is
            where counting begins and grows by nothing.
Gaps        are gaps: a second without a reading takes part in nothing.
Come and go a series is made when it is first named, and forgotten with its node, or after `FORGET_S` of silence; its place is given to the next.
Is wrong    when the caller's clock jumps: ahead, and the history shrinks; back by more than a minute, and it begins anew. Nodes' clocks differ, so `at` is
            best the time a message came in. Quantiles over more than a minute are those of means over ten seconds or a minute, and hide what is shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.metric import METRICS, Kind, Series
from holdfast.domain.signal import Signal

Floats = NDArray[np.float64]
Keys = NDArray[np.int64]
Truths = NDArray[np.bool_]

SECOND_ROWS: Final = 64
TEN_ROWS: Final = 32
MINUTE_ROWS: Final = 62
HISTORY_S: Final = 3600.0  # The longest window.
GRACE_S: Final = 10
FUTURE_S: Final = 5.0
GAP_S: Final = 300.0
FORGET_S: Final = 6 * 3600.0
LARGEST: Final = float(np.finfo(np.float32).max)

_SHORT_S, _MIDDLE_S = 60, 300  # The longest windows that are answered from seconds alone, and without minutes.
_STEP = 30  # The clock moves at most so far at once, so that what is to be folded is still there.
_GROWTH = 8  # What is full grows by an eighth: little is wasted at 10,000 nodes, and a copy is still rare.
_FIRST_EXTENT = 8
_FEW = 500  # Columns below which one call with all indices is cheaper than one for each row.
_NODE = 32  # A key holds the number of the node's name above this bit, and below it that of the name within the node.


@dataclass(slots=True)
class Refused:
    """How many readings were not taken, by reason; `not_finite` ones were, as no reading."""

    not_finite: int = 0
    out_of_order: int = 0
    late: int = 0
    future: int = 0
    too_many: int = 0


@dataclass(slots=True)
class Row:
    """Where the readings of one node go, in the order of `names`: pairs of a metric and what it is of. It stays good when series come and go."""

    node: str
    names: tuple[tuple[str, str], ...]
    columns: NDArray[np.int64]
    releases: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The series of one metric, by ascending key. The same object as long as none came or went."""

    columns: NDArray[np.int64]
    keys: Keys

    def beside(self, key: int) -> int:
        """How many series there are of the same node as this one's."""
        return int(np.count_nonzero(self.keys >> _NODE == key >> _NODE))


class _Level:
    """One ring of folded rows."""

    def __init__(self, rows: int, span_s: int) -> None:
        self.rows, self.span_s = rows, span_s
        self.closed = 0  # All seconds before this one are folded; a multiple of the span.
        self.sum = np.zeros((rows, 0), np.float32)
        self.min = np.full((rows, 0), np.nan, np.float32)
        self.max = np.full((rows, 0), np.nan, np.float32)
        self.count = np.zeros((rows, 0), np.uint8)

    def grow(self, capacity: int) -> None:
        self.sum, self.min = _wider(self.sum, capacity, 0), _wider(self.min, capacity, np.nan)
        self.max, self.count = _wider(self.max, capacity, np.nan), _wider(self.count, capacity, 0)

    def clear(self, rows: Any = slice(None), columns: Any = slice(None)) -> None:
        self.sum[rows, columns], self.count[rows, columns] = 0, 0
        self.min[rows, columns], self.max[rows, columns] = np.nan, np.nan


class Rings:
    """All series of one job. `now` and `at` are seconds of the same clock."""

    def __init__(self, *, series_max: int = 600_000) -> None:
        self.refused = Refused()
        self.series_max = series_max
        self._seconds = np.full((SECOND_ROWS, 0), np.nan, np.float32)
        self._tens, self._minutes = _Level(TEN_ROWS, 10), _Level(MINUTE_ROWS, 60)
        self._last = np.empty(0, np.float64)  # The newest reading as it came; of a counter, the newest that was finite.
        self._at = np.empty(0, np.float64)  # When the newest reading, finite or not, was taken.
        self._counter = np.empty(0, np.bool_)
        self._key = np.empty(0, np.int64)  # -1 for a column that no series uses.
        self._metric = np.empty(0, np.int32)
        self._slot: int | None = None  # The present second.
        self._used = 0  # Columns handed out to metrics.
        self._capacity = 0
        self._free: dict[str, list[int]] = {}  # Columns of a metric that no series uses.
        self._size: dict[str, int] = {}  # Columns a metric has.
        self._index: dict[str, dict[tuple[str, str], int]] = {}  # By node: the column of each name.
        self._names: dict[tuple[str, str], tuple[str, str]] = {}  # One tuple for all nodes, which keeps a half million of them out of memory.
        self._numbers: dict[str, int] = {"": 0}
        self._words: list[str] = [""]
        self._layouts: dict[str, Layout] = {}
        self._rows: dict[str, tuple[tuple[str, ...], tuple[str, ...], Row]] = {}  # The last message's metrics, what they are of, and their row.
        self._releases = 0
        self._swept = 0
        self._series = 0

    # --- Taking readings.

    def take(self, node: str, signals: Sequence[Signal], *, at: float, now: float) -> None:
        """One message of a node. A message with the same names in the same order as the last costs least."""
        if not signals:
            return
        metrics, values, of = zip(*signals, strict=True)
        known = self._rows.get(node)
        if known is None or known[0] != metrics or known[1] != of:
            row = self.row(node, tuple(zip(metrics, of, strict=True)))
            # The row's own strings and not the message's, which are new ones every time and would be kept for each node.
            known = self._rows[node] = (tuple(name[0] for name in row.names), tuple(name[1] for name in row.names), row)
        self.insert(known[2], np.array(values, np.float64), at=at, now=now)

    def row(self, node: str, names: Sequence[tuple[str, str]]) -> Row:
        """Places for a node's readings; what is not known yet is made."""
        names = tuple(self._names.setdefault(name, name) for name in names)
        return Row(node, names, self._columns(node, names), self._releases)

    def insert(self, row: Row, values: Floats, *, at: float, now: float) -> None:
        """Take one reading for each name of the row, all taken at `at`."""
        self.advance(now)
        assert self._slot is not None
        if row.releases != self._releases:
            row.columns, row.releases = self._columns(row.node, row.names), self._releases
        columns = row.columns
        if at > now + FUTURE_S:
            self.refused.future += len(columns)
            return
        slot = min(int(at // 1), self._slot)
        if slot < self._tens.closed:
            self.refused.late += len(columns)
            return
        newer = self._at[columns] < at
        newer &= columns >= 0
        if not newer.all():
            too_many = int(np.count_nonzero(columns < 0))
            self.refused.too_many += too_many
            self.refused.out_of_order += len(columns) - int(np.count_nonzero(newer)) - too_many
            columns, values = columns[newer], values[newer]
        self._write(columns, values, slot, at)

    def _write(self, columns: NDArray[np.int64], values: Floats, slot: int, at: float) -> None:
        finite = np.abs(values) <= LARGEST
        counter = self._counter[columns]
        ring, shown = self._seconds[slot % SECOND_ROWS], values
        if counter.any():
            before = self._last[columns]
            with np.errstate(invalid="ignore"):  # Infinite readings beside the counters.
                grown = np.where(values >= before, values - before, values)
            grown[np.isnan(before) | (at - self._at[columns] > GAP_S)] = 0.0
            earlier = ring[columns]  # Of the same second: a gauge shows its newest reading, a counter all it grew.
            shown = np.where(counter, grown + np.where(np.isnan(earlier), 0.0, earlier), values)
        if finite.all():
            ring[columns] = shown
            self._last[columns] = values
        else:
            self.refused.not_finite += len(values) - int(np.count_nonzero(finite))
            ring[columns[finite]] = shown[finite]
            kept = finite | ~counter
            self._last[columns[kept]] = values[kept]
        self._at[columns] = at

    # --- Time.

    def advance(self, now: float) -> None:
        """Move to `now`; rows that come free are emptied, and what is old enough is folded."""
        slot = int(now // 1)
        if slot == self._slot:
            return
        if self._slot is None or not -_SHORT_S <= slot - self._slot <= HISTORY_S:
            self._begin(slot)
        elif slot < self._slot:
            return  # A small step back: what was taken since stands, and time waits until it is caught up with.
        while self._slot != slot:
            assert self._slot is not None
            self._move(min(slot, self._slot + _STEP))
        if slot - self._swept >= 60:
            self._swept = slot
            self._forget_silent(now - FORGET_S)

    def _begin(self, slot: int) -> None:
        self._slot = self._swept = slot
        self._seconds[:] = np.nan
        for level in (self._tens, self._minutes):
            level.closed = (slot - GRACE_S) // level.span_s * level.span_s
            level.clear()
        later = self._at > slot + FUTURE_S  # A clock that was ahead must not silence what is read now.
        self._at[later] = -np.inf

    def _move(self, slot: int) -> None:
        assert self._slot is not None
        first, self._slot = self._slot + 1, slot
        for second in range(first, slot + 1):
            self._seconds[second % SECOND_ROWS] = np.nan
        while self._tens.closed + 10 + GRACE_S <= slot:
            self._fold_seconds()
            if self._tens.closed % 60 == 0:
                self._fold_tens()

    def _fold_seconds(self) -> None:
        tens, used = self._tens, self._used
        row = tens.closed // 10 % TEN_ROWS
        tens.clear(row)
        with np.errstate(over="ignore"):
            for second in range(tens.closed, tens.closed + 10):
                values = self._seconds[second % SECOND_ROWS, :used]
                there = ~np.isnan(values)
                np.add(tens.sum[row, :used], values, out=tens.sum[row, :used], where=there)
                np.fmin(tens.min[row, :used], values, out=tens.min[row, :used])
                np.fmax(tens.max[row, :used], values, out=tens.max[row, :used])
                tens.count[row, :used] += there
        tens.closed += 10

    def _fold_tens(self) -> None:
        minutes, tens = self._minutes, self._tens
        row = (tens.closed // 60 - 1) % MINUTE_ROWS
        rows = [bucket % TEN_ROWS for bucket in range(tens.closed // 10 - 6, tens.closed // 10)]
        with np.errstate(over="ignore"):
            minutes.sum[row], minutes.count[row] = tens.sum[rows].sum(axis=0), tens.count[rows].sum(axis=0)
            minutes.min[row], minutes.max[row] = np.fmin.reduce(tens.min[rows]), np.fmax.reduce(tens.max[rows])
        minutes.closed = tens.closed

    # --- Series come and go.

    def _columns(self, node: str, names: Sequence[tuple[str, str]]) -> NDArray[np.int64]:
        """-1 for a series that there is no place for."""
        index = self._index.setdefault(node, {})
        return np.array([index[name] if name in index else self._new(node, index, name) for name in names], np.int64)

    def _new(self, node: str, index: dict[tuple[str, str], int], name: tuple[str, str]) -> int:
        if self._series >= self.series_max:
            return -1
        metric, of = name
        column = self._place(metric)
        key = self._number(node) << _NODE | self._number(of)
        index[name] = column
        self._key[column] = key
        self._last[column], self._at[column] = np.nan, -np.inf
        self._layouts.pop(metric, None)
        self._series += 1
        return column

    def _place(self, metric: str) -> int:
        """A free column. Those of one metric lie together in extents, so that looking at one metric touches little memory."""
        free = self._free.setdefault(metric, [])
        if not free:
            size = self._size.get(metric, 0)
            extent = max(_FIRST_EXTENT, size // _GROWTH)
            if self._used + extent > self._capacity:
                self._grow(max(self._used + extent, self._capacity + self._capacity // _GROWTH))
            free.extend(range(self._used + extent - 1, self._used - 1, -1))
            known = METRICS.get(metric)
            self._counter[self._used : self._used + extent] = known is not None and known.kind is Kind.COUNTER
            self._metric[self._used : self._used + extent] = self._number(metric)
            self._used += extent
            self._size[metric] = size + extent
        return free.pop()

    def _grow(self, capacity: int) -> None:
        self._seconds = _wider(self._seconds, capacity, np.nan)
        self._tens.grow(capacity)
        self._minutes.grow(capacity)
        more = capacity - self._capacity
        self._last, self._at = np.append(self._last, np.full(more, np.nan)), np.append(self._at, np.full(more, -np.inf))
        self._counter, self._key = np.append(self._counter, np.zeros(more, np.bool_)), np.append(self._key, np.full(more, -1))
        self._metric = np.append(self._metric, np.full(more, -1, np.int32))
        self._capacity = capacity

    def forget(self, node: str) -> None:
        """The node has left: its series are gone, and alerts about them end."""
        self._rows.pop(node, None)
        self._release(node, list(self._index.get(node, ())))

    def _forget_silent(self, before: float) -> None:
        """What was not heard since is forgotten; what was only named and never read, too."""
        silent = np.flatnonzero((self._at < before) & (self._key >= 0))
        for number in np.unique(self._key[silent] >> _NODE).tolist():
            node = self._words[number]
            self._release(node, [name for name, column in self._index[node].items() if self._at[column] < before])

    def _release(self, node: str, names: Sequence[tuple[str, str]]) -> None:
        index = self._index.get(node, {})
        columns = np.array([index[name] for name in names], np.int64)
        for name in names:
            column = index.pop(name)
            self._free[name[0]].append(column)
            self._layouts.pop(name[0], None)
        if not index:
            self._index.pop(node, None)
            self._rows.pop(node, None)
        if len(columns):
            self._seconds[:, columns], self._at[columns], self._key[columns] = np.nan, -np.inf, -1
            self._tens.clear(columns=columns)
            self._minutes.clear(columns=columns)
            self._series -= len(columns)
            self._releases += 1

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            number = self._numbers[word] = len(self._words)
            self._words.append(word)
        return number

    # --- What there is.

    def layout(self, metric: str) -> Layout:
        found = self._layouts.get(metric)
        if found is None:
            columns = np.flatnonzero((self._metric == self._numbers.get(metric, -1)) & (self._key >= 0))
            keys = self._key[columns]
            order = np.argsort(keys)
            found = self._layouts[metric] = Layout(columns[order], keys[order])
        return found

    def name(self, metric: str, key: int) -> Series:
        return Series(metric=metric, node=self._words[key >> _NODE], of=self._words[key & (1 << _NODE) - 1])

    def metrics(self) -> list[str]:
        """All that were ever read, in the order they were first heard of."""
        return list(self._size)

    def __len__(self) -> int:
        return self._series

    @property
    def size_bytes(self) -> int:
        """Of the rings; the names of 10,000 nodes × 50 metrics take some 60 MB more."""
        levels = [array.nbytes for level in (self._tens, self._minutes) for array in (level.sum, level.min, level.max, level.count)]
        flat = (self._last, self._at, self._counter, self._key, self._metric)
        return self._seconds.nbytes + sum(levels) + sum(array.nbytes for array in flat)

    # --- Windows: one value for each column, NaN where there is no reading.

    def newest(self, columns: NDArray[np.int64], window_s: float, now: float) -> Floats:
        """NaN where the newest is not finite, or older than the window."""
        last = self._last[columns]
        return np.where((self._at[columns] > now - window_s) & (np.abs(last) <= LARGEST), last, np.nan)

    def is_not_finite(self, columns: NDArray[np.int64], window_s: float, now: float) -> Floats:
        """1 where the newest reading is NaN or infinite, 0 where it is a number."""
        bad = ~(np.abs(self._last[columns]) <= LARGEST)
        return np.where(self._at[columns] > now - window_s, bad.astype(np.float64), np.nan)

    def age_s(self, columns: NDArray[np.int64], now: float) -> Floats:
        """Time since the newest reading; NaN for one that never spoke."""
        age = now - self._at[columns]
        age[np.isinf(age)] = np.nan
        return np.maximum(age, 0.0)

    def sum(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        """Of a counter: how much it grew."""
        total, count = self._sum_and_count(columns, window_s)
        return np.where(count > 0, total, np.nan)

    def count(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        return self._sum_and_count(columns, window_s)[1]

    def mean(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        total, count = self._sum_and_count(columns, window_s)
        return _floats(np.divide(total, count, out=np.full(len(columns), np.nan), where=count > 0))

    def min(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        return _floats(np.fmin.reduce([np.fmin.reduce(block) for block in self._parts(columns, window_s, "min")]))

    def max(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        return _floats(np.fmax.reduce([np.fmax.reduce(block) for block in self._parts(columns, window_s, "max")]))

    def quantile(self, columns: NDArray[np.int64], window_s: float, share: float) -> Floats:
        """Interpolated between neighbours. Over more than a minute: of the means of ten seconds or a minute, and of what is not folded yet together."""
        block = np.sort(self._even(columns, window_s), axis=0)  # NaN sorts last.
        count = np.count_nonzero(~np.isnan(block), axis=0)
        place = share * np.maximum(count - 1, 0)
        below = np.floor(place).astype(np.int64)
        low = np.take_along_axis(block, below[None, :], axis=0)[0]
        high = np.take_along_axis(block, np.minimum(below + 1, np.maximum(count - 1, 0))[None, :], axis=0)[0]
        return _floats(low + (high - low) * (place - below))

    def slope(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        """Least squares, per second; NaN unless the readings reach back at least half the window."""
        assert self._slot is not None
        weights, times, values = [], [], []
        for total, count, middle in self._folded(columns, window_s):
            weights.append(count.astype(np.float64))
            times.append(np.broadcast_to((middle - self._slot)[:, None], count.shape))
            values.append(np.divide(total, count, out=np.zeros(total.shape), where=count > 0))
        weight, time, value = np.concatenate(weights), np.concatenate(times), np.concatenate(values)
        n = weight.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            time_mean, value_mean = (weight * time).sum(axis=0) / n, (weight * value).sum(axis=0) / n
            away = time - time_mean
            fit = (weight * away * (value - value_mean)).sum(axis=0) / (weight * away * away).sum(axis=0)
        oldest = np.where(weight > 0, time, 0.0).min(axis=0)
        return np.where((oldest <= -window_s / 2) & np.isfinite(fit), fit, np.nan)

    def _sum_and_count(self, columns: NDArray[np.int64], window_s: float) -> tuple[Floats, Floats]:
        total, number = np.zeros(len(columns)), np.zeros(len(columns))
        for sums, counts, _ in self._folded(columns, window_s):
            total += sums.sum(axis=0, dtype=np.float64)
            number += counts.sum(axis=0, dtype=np.uint32)
        return total, number

    def _even(self, columns: NDArray[np.int64], window_s: float) -> Floats:
        """Rows of equal weight: the coarsest level's, and one for all that is finer."""
        *finer, (sums, counts, _) = self._folded(columns, window_s)
        total, count = sums.astype(np.float64), counts.astype(np.float64)
        if finer:
            total = np.vstack([total, sum(one.sum(axis=0, dtype=np.float64) for one, _, _ in finer)])
            count = np.vstack([count, sum(one.sum(axis=0, dtype=np.float64) for _, one, _ in finer)])
        return _floats(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))

    def _folded(self, columns: NDArray[np.int64], window_s: float) -> Iterator[tuple[NDArray[np.float32], NDArray[np.uint8], Floats]]:
        """For each level, seconds first: sums, numbers of readings, and the middle of each row in time."""
        for level, first, last in self._spans(window_s):
            rows, times = self._rows_between(level, first, last)
            if level is None:
                values = _block(self._seconds, rows, columns)
                gaps = np.isnan(values)
                values[gaps] = 0.0
                yield values, (~gaps).view(np.uint8), times
            else:
                yield _block(level.sum, rows, columns), _block(level.count, rows, columns), times

    def _parts(self, columns: NDArray[np.int64], window_s: float, what: str) -> Iterator[NDArray[np.float32]]:
        for level, first, last in self._spans(window_s):
            rows, _ = self._rows_between(level, first, last)
            if len(rows):
                yield _block(self._seconds if level is None else getattr(level, what), rows, columns)

    def _rows_between(self, level: _Level | None, first: int, last: int) -> tuple[NDArray[np.int64], Floats]:
        span, size = (1, SECOND_ROWS) if level is None else (level.span_s, level.rows)
        buckets = np.arange(first // span, last // span, dtype=np.int64)
        return buckets % size, _floats(buckets * float(span) + (span - 1) / 2)

    def _spans(self, window_s: float) -> Iterator[tuple[_Level | None, int, int]]:
        """Which seconds `[first, last)` of a window each level answers for; they meet without overlap."""
        assert self._slot is not None, "nothing was taken yet"
        assert 0 < window_s <= HISTORY_S
        begin, end = self._slot - int(-(-window_s // 1)) + 1, self._slot + 1
        if window_s <= _SHORT_S:
            yield None, begin, end
            return
        yield None, self._tens.closed, end
        if window_s <= _MIDDLE_S:
            yield self._tens, begin // 10 * 10, self._tens.closed
        else:
            yield self._tens, self._minutes.closed, self._tens.closed
            yield self._minutes, begin // 60 * 60, self._minutes.closed


def _wider(array: NDArray[Any], capacity: int, fill: float) -> NDArray[Any]:
    wide = np.full((array.shape[0], capacity), fill, array.dtype)
    wide[:, : array.shape[1]] = array
    return wide


def _floats(values: Any) -> Floats:
    return np.asarray(values, np.float64)


def _block(array: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[Any]:
    """Never whole rows first, which would copy every metric's readings to look at one's."""
    if len(columns) < _FEW:
        return np.asarray(array[rows[:, None], columns])
    block = np.empty((len(rows), len(columns)), array.dtype)
    for place, row in enumerate(rows):
        array[row].take(columns, out=block[place], mode="clip")  # Other modes copy first.
    return block
