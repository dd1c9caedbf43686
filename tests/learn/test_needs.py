"""Needs: the peak of a shape lies in its interval, and a line is drawn only where there is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.past import PastRun
from holdfast.learn.needs import peak_of, peaks


def ran(peak: int, batch: int = 8, number: int = 0) -> PastRun:
    return PastRun(job=f"j{number}", run=str(number), command="train.py", shape=(("batch", str(batch)),), started_at=float(number), peak_bytes=peak)


@given(st.lists(st.integers(1, 1 << 50), min_size=1, max_size=30))
def test_the_interval_holds_the_middle_and_is_never_negative(sizes: list[int]) -> None:
    found = peak_of("train.py", (("batch", "8"),), [ran(size, number=number) for number, size in enumerate(sizes)])
    assert found is not None
    assert 0.0 <= found.low_bytes <= found.bytes <= found.high_bytes


def test_more_runs_that_agree_make_it_surer() -> None:
    few, many = (peak_of("train.py", (("batch", "8"),), [ran(1000 + number % 3, number=number) for number in range(count)]) for count in (1, 10))
    assert few is not None
    assert many is not None
    assert many.high_bytes - many.low_bytes < few.high_bytes - few.low_bytes


def test_a_shape_never_seen_is_read_off_a_line_through_others() -> None:
    runs = [ran(1000 + 100 * batch, batch, batch) for batch in (8, 16, 24, 32)]
    found = peak_of("train.py", (("batch", "64"),), runs)
    assert found is not None
    assert found.bytes == pytest.approx(7400)
    assert "a line over batch" in found.because


def test_two_points_are_no_line_and_words_are_no_numbers() -> None:
    runs = [ran(1000, 8), ran(2000, 16, 1)]
    assert peak_of("train.py", (("batch", "64"),), runs) is None
    assert peak_of("train.py", (("batch", "big"),), runs) is None
    assert peak_of("other.py", (("batch", "8"),), runs) is None


def test_every_shape_that_was_seen_is_listed_once() -> None:
    assert sorted(one.runs for one in peaks([ran(1000), ran(1100, number=1), ran(2000, 16, 2), ran(0, 32, 3)])) == [1, 2]
