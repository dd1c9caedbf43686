"""The history of a job's series, in its store: thinner the older it is, and bounded however long the job runs.

    level     a row is    rows kept   reaches back
    0         10 s        360         1 h
    1         1 min       360         6 h
    2         10 min      432         3 d
    3         6 h         480         120 d

A row holds for each series the mean, the smallest and the largest value of its time; of a counter, how much it grew a second. A rank's series is the rank's,
on whichever node it runs. For each metric there is one series more, `of` = "*", over all of them: it is kept also where there are too many series to keep.

Bounded     1,000 series and 1,632 rows of 12 bytes a series: under 25 MB. The series of a small job take a tenth of that.
Beside      rows are written by a thread, unsynced, one at a time. One that cannot be written, because the disk is full or slow, is lost: it costs a picture.
Is wrong    by up to a second at the edges of a row; the values are 32 bits wide.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.series import Rings
from holdfast.domain.metric import METRICS, Kind, Scope, Series

LEVELS: Final = ((10, 360), (60, 360), (600, 432), (21600, 480))  # Seconds of a row, and how many are kept.
SERIES_MAX: Final = 1000
ALL: Final = "*"
_EACH_MAX: Final = 256  # A metric with more series than this is kept as one over all of them.
_ORDER: Final = {name: place for place, name in enumerate(METRICS)}  # Where there is not room for all, training comes first.
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, metric TEXT NOT NULL, node TEXT NOT NULL, of TEXT NOT NULL, UNIQUE (metric, node, of))",
    "CREATE TABLE IF NOT EXISTS rows (level INTEGER NOT NULL, at INTEGER NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (level, at)) WITHOUT ROWID",
)

Numbered = tuple[Series, NDArray[np.float64]]
Block = NDArray[np.float32]  # Three rows (mean, smallest, largest), a column for each series by its id; NaN where there is nothing.


class Point(NamedTuple):
    at: float  # Where its row begins.
    mean: float
    min: float
    max: float


class Looked(NamedTuple):
    """What was seen in the last row's time, taken from the rings at once, so that a thread may write it."""

    at: int
    series: tuple[Series, ...]
    numbers: Block


class Keeper:
    """Writes the history down beside everything else: a disk that hangs holds up one thread and nobody else."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._thread: threading.Thread | None = None
        self._failed = False

    def look(self, rings: Rings, now: float) -> None:
        if self._thread is None or not self._thread.is_alive():
            looked = self._history.look(rings, now)
            if looked is not None:
                # A daemon: at the end nobody waits for a disk that does not answer.
                self._thread = threading.Thread(target=self._write, args=(looked,), name="history", daemon=True)
                self._thread.start()

    def _write(self, looked: Looked) -> None:
        try:
            self._history.write(looked)
        except (OSError, sqlite3.Error) as error:
            if not self._failed:
                print(f"holdfast control: the history of the series is not written: {error}; the job does not need it", file=sys.stderr, flush=True)
            self._failed = True
        else:
            self._failed = False


class History:
    """`look` in the loop, `write` in a thread; one of each at a time."""

    def __init__(self, path: Path, *, series_max: int = SERIES_MAX) -> None:
        self._path, self._series_max = path, series_max
        self._next: int | None = None
        self._database: sqlite3.Connection | None = None
        self._ids: dict[Series, int] = {}

    def look(self, rings: Rings, now: float) -> Looked | None:
        """What there is to write; None as long as the row's time is not over."""
        step = LEVELS[0][0]
        if self._next is None:
            self._next = int(now // step + 1) * step
        if now < self._next:
            return None
        at = int(now // step - 1) * step  # After a pause of ours only the last row's time is still known.
        self._next = at + 2 * step
        everything: list[Numbered] = []
        details: list[Numbered] = []
        for metric in sorted(rings.metrics(), key=lambda name: _ORDER.get(name, len(_ORDER))):
            over_all, each = _of_metric(rings, metric, float(step))
            everything += over_all
            details += each
        found = (everything + details)[: 2 * self._series_max]
        return Looked(at, tuple(series for series, _ in found), np.array([numbers for _, numbers in found], np.float32).reshape(-1, 3).T)

    def write(self, looked: Looked) -> None:
        """Raises OSError or sqlite3.Error where it cannot; the next one may work again."""
        try:
            database = self._open()
            with database:
                self._insert(database, 0, looked.at, self._placed(database, looked))
                self._fold(database, looked.at + LEVELS[0][0])
        except sqlite3.DatabaseError as error:
            self.close()
            if not isinstance(error, sqlite3.OperationalError):  # It is damaged, and no picture is worth keeping it for.
                self._path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
        self._database, self._ids = None, {}

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            database = sqlite3.connect(self._path, timeout=1.0, check_same_thread=False)
            self._database = database
            for statement in ("PRAGMA auto_vacuum = FULL", "PRAGMA journal_mode = TRUNCATE", "PRAGMA synchronous = OFF", *_SCHEMA):
                database.execute(statement)
            self._ids = {Series(metric=metric, node=node, of=of): id for id, metric, node, of in database.execute("SELECT id, metric, node, of FROM series")}
        return self._database

    def _placed(self, database: sqlite3.Connection, looked: Looked) -> Block:
        """By id; what is new gets one while there are any."""
        new = [series for series in looked.series if series not in self._ids][: max(0, self._series_max - len(self._ids))]
        for series in new:
            row = database.execute("INSERT INTO series (metric, node, of) VALUES (?, ?, ?) RETURNING id", (series.metric, series.node, series.of)).fetchone()
            self._ids[series] = row[0]
        columns = np.array([self._ids.get(series, 0) for series in looked.series], np.int64)
        block = np.full((3, max(self._ids.values(), default=0) + 1), np.nan, np.float32)
        block[:, columns[columns > 0]] = looked.numbers[:, columns > 0]
        return block

    def _insert(self, database: sqlite3.Connection, level: int, at: int, block: Block) -> None:
        span, kept = LEVELS[level]
        database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (level, at, block.astype("<f4").tobytes()))
        database.execute("DELETE FROM rows WHERE level = ? AND (at <= ? OR at > ?)", (level, at - span * kept, at + span))  # A clock may have been ahead.

    def _fold(self, database: sqlite3.Connection, end: int) -> None:
        """Each level from the one below it, as soon as its row's time is over."""
        for level, (span, _) in enumerate(LEVELS[1:], 1):
            if end % span:
                return
            rows = database.execute("SELECT numbers FROM rows WHERE level = ? AND at >= ? AND at < ?", (level - 1, end - span, end)).fetchall()
            if rows:
                self._insert(database, level, end - span, _folded([_block(raw) for (raw,) in rows]))


def read_history(path: Path, metrics: Iterable[str], since: float, until: float) -> dict[Series, list[Point]]:
    """The points of these metrics' series between two times, oldest first, each time from the finest level that still has it. Empty where nothing is kept."""
    wanted = set(metrics)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)) as database:
            ids = {id: Series(metric=metric, node=node, of=of) for id, metric, node, of in database.execute("SELECT * FROM series") if metric in wanted}
            rows = database.execute("SELECT level, at, numbers FROM rows WHERE at > ? AND at < ?", (since - LEVELS[-1][0], until)).fetchall()
    except sqlite3.Error:
        return {}
    found: dict[Series, list[Point]] = {}
    covered = until  # From here on a finer level has spoken.
    for number, (span, _) in enumerate(LEVELS):
        of_level = [(at, _block(raw)) for level, at, raw in rows if level == number and at + span > since and (at + span <= covered or not number)]
        for at, block in of_level:
            for id, series in ids.items():
                if id < block.shape[1] and not np.isnan(block[0, id]):
                    found.setdefault(series, []).append(Point(float(at), *(float(value) for value in block[:, id])))
        covered = min([covered, *(at for at, _ in of_level)])
    return {series: sorted(points) for series, points in found.items()}


def _of_metric(rings: Rings, metric: str, window_s: float) -> tuple[list[Numbered], list[Numbered]]:
    """Over all series of a metric, if it has several of them, and each of them, unless they are too many."""
    layout = rings.layout(metric)
    known = METRICS.get(metric)
    if known is not None and known.kind is Kind.COUNTER:
        numbers = np.tile(rings.sum(layout.columns, window_s) / window_s, (3, 1))
    else:
        numbers = np.array([of(layout.columns, window_s) for of in (rings.mean, rings.min, rings.max)])
    there = np.flatnonzero(~np.isnan(numbers[0]))
    if not len(there):
        return [], []
    numbers = numbers[:, there]
    if known is not None and known.scope is Scope.JOB:
        return [(Series(metric=metric), numbers[:, 0])], []
    over_all = (Series(metric=metric, of=ALL), np.array([numbers[0].mean(), numbers[1].min(), numbers[2].max()]))
    of_rank = known is None or known.scope is Scope.RANK
    each: dict[Series, NDArray[np.float64]] = {}
    for place, key in enumerate(layout.keys[there].tolist() if len(there) <= _EACH_MAX else ()):
        series = rings.name(metric, key)
        each[Series(metric=metric, node="" if of_rank else series.node, of=series.of)] = numbers[:, place]
    return [over_all], list(each.items())


def _block(raw: bytes) -> Block:
    return np.frombuffer(raw, "<f4").reshape(3, -1)


def _folded(blocks: Sequence[Block]) -> Block:
    """Older rows may know fewer series."""
    width = max(block.shape[1] for block in blocks)
    same = np.full((len(blocks), 3, width), np.nan, np.float32)
    for place, block in enumerate(blocks):
        same[place, :, : block.shape[1]] = block
    count = np.count_nonzero(~np.isnan(same[:, 0]), axis=0)
    total = np.nansum(same[:, 0], axis=0, dtype=np.float64)
    mean = np.divide(total, count, out=np.full(width, np.nan), where=count > 0)
    return np.array([mean, np.fmin.reduce(same[:, 1]), np.fmax.reduce(same[:, 2])], np.float32)
