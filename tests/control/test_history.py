"""The history of series: thinner the older it is, bounded, and never worth a job."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.control.history import ALL, LEVELS, History, Keeper, Looked, read_history
from holdfast.detect.series import Rings
from holdfast.domain.metric import Series
from holdfast.domain.signal import Signal

BEGIN = 1_800_000.0  # A multiple of every level's row.


class Kept:
    """Rings that are read once a second, and what is written of them."""

    def __init__(self, path: Path, **limits: int) -> None:
        self.path, self.rings, self.history = path, Rings(), History(path, **limits)

    def second(self, second: float, *signals: Signal, node: str = "a") -> None:
        now = BEGIN + second
        looked = self.history.look(self.rings, now)
        if looked is not None:
            self.history.write(looked)
        self.rings.take(node, signals, at=now, now=now)

    def read(self, metric: str, since: float = 0.0, until: float = math.inf) -> dict[Series, list[tuple[float, float, float, float]]]:
        found = read_history(self.path, [metric], BEGIN + since, BEGIN + until)
        return {series: [(point.at - BEGIN, point.mean, point.min, point.max) for point in points] for series, points in found.items()}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "series.db")


def test_ten_seconds_are_one_row_with_mean_smallest_and_largest(kept: Kept) -> None:
    for second in range(31):
        kept.second(second, Signal("loss", float(second), "0"))
    rows = kept.read("loss")[Series(metric="loss", of="0")]
    assert [row[0] for row in rows] == [0, 10, 20]
    assert rows[1] == pytest.approx((10, 14.5, 10, 19))


def test_of_a_counter_it_is_kept_how_much_it_grew_a_second(kept: Kept) -> None:
    for second in range(31):
        kept.second(second, Signal("host_segments_total", 1000.0 + 3 * second))
    assert kept.read("host_segments_total")[Series(metric="host_segments_total", node="a")][-1] == pytest.approx((20, 3, 3, 3))


def test_a_rank_is_one_series_on_whichever_node_it_runs_and_all_of_them_one_more(kept: Kept) -> None:
    for second in range(41):
        kept.second(second, Signal("loss", 1.0, "0"), Signal("loss", 3.0, "1"), node="a" if second < 20 else "b")
    found = kept.read("loss")
    assert found.keys() == {Series(metric="loss", of="0"), Series(metric="loss", of="1"), Series(metric="loss", of=ALL)}
    assert [row[0] for row in found[Series(metric="loss", of="0")]] == [0, 10, 20, 30]
    assert found[Series(metric="loss", of=ALL)][0] == pytest.approx((0, 2, 1, 3))


def test_what_is_old_is_thinner_and_nothing_is_told_twice(kept: Kept) -> None:
    hours = 8
    for second in range(0, hours * 3600 + 1, 5):
        kept.second(second, Signal("loss", second / 3600, "0"))
    rows = kept.read("loss")[Series(metric="loss", of="0")]
    times = [row[0] for row in rows]
    assert times == sorted(set(times))
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert steps == sorted(steps, reverse=True)
    assert set(steps) == {10, 60, 600}
    assert times[0] == 0
    assert all(mean == pytest.approx(at / 3600, abs=0.2) and low <= mean <= high for at, mean, low, high in rows)


def test_the_file_is_bounded_however_long_it_runs(kept: Kept) -> None:
    span, most = LEVELS[0]
    for row in range(most * 4):
        kept.history.write(Looked(int(BEGIN) + row * span, (Series(metric="loss", of="0"),), _numbers(1.0)))
    size = kept.path.stat().st_size
    for row in range(most * 4, most * 8):
        kept.history.write(Looked(int(BEGIN) + row * span, (Series(metric="loss", of="0"),), _numbers(1.0)))
    assert kept.path.stat().st_size < size + 100_000
    with sqlite3.connect(kept.path) as database:
        assert database.execute("SELECT count(*) FROM rows WHERE level = 0").fetchone()[0] <= most


def test_more_series_than_there_is_room_for_leave_the_one_over_all_of_them(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "series.db", series_max=10)
    for second in range(21):
        kept.second(second, *(Signal("loss", float(rank), str(rank)) for rank in range(20)))
    found = kept.read("loss")
    assert len(found) == 10
    assert found[Series(metric="loss", of=ALL)][0] == pytest.approx((0, 9.5, 0, 19))


def test_a_job_that_goes_on_later_goes_on_in_the_same_history(tmp_path: Path) -> None:
    for begin in (0, 100):
        kept = Kept(tmp_path / "series.db")
        for second in range(begin, begin + 31):
            kept.second(second, Signal("loss", 1.0, "0"), Signal("step", float(second), "0"))
        kept.history.close()
    assert [row[0] for row in kept.read("loss")[Series(metric="loss", of="0")]] == [0, 10, 20, 100, 110, 120]


def test_a_file_that_is_damaged_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "series.db"
    path.write_bytes(b"this is no database" * 1000)
    assert read_history(path, ["loss"], 0.0, 1.0) == {}
    history = History(path)
    with pytest.raises(sqlite3.DatabaseError):
        history.write(Looked(int(BEGIN), (Series(metric="loss"),), _numbers(1.0)))
    history.write(Looked(int(BEGIN) + 10, (Series(metric="loss"),), _numbers(1.0)))
    assert len(read_history(path, ["loss"], BEGIN, BEGIN + 100)) == 1


def test_nothing_is_kept_where_nothing_was_written(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none.db", ["loss"], 0.0, 1.0) == {}


def test_what_cannot_be_written_is_said_once_and_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rings, keeper = Rings(), Keeper(History(tmp_path / "not there" / "series.db"))
    for second in range(60):
        rings.take("a", [Signal("loss", 1.0, "0")], at=BEGIN + second, now=BEGIN + second)
        keeper.look(rings, BEGIN + second)
        if keeper._thread is not None:
            keeper._thread.join()
    assert capsys.readouterr().err.count("the job does not need it") == 1


def test_a_disk_that_hangs_holds_up_one_thread_and_nobody_else(tmp_path: Path) -> None:
    class Hanging(History):
        def write(self, looked: Looked) -> None:
            written.append(looked)
            go_on.wait(30)

    written: list[Looked] = []
    go_on = threading.Event()
    rings, keeper = Rings(), Keeper(Hanging(tmp_path / "series.db"))
    began = time.monotonic()
    for second in range(100):
        rings.take("a", [Signal("loss", 1.0, "0")], at=BEGIN + second, now=BEGIN + second)
        keeper.look(rings, BEGIN + second)
    assert time.monotonic() - began < 5.0
    assert len(written) == 1
    go_on.set()


def _numbers(value: float) -> NDArray[np.float32]:
    return np.full((3, 1), value, np.float32)
