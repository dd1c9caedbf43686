"""Hopelessly slow: many times slower than the job itself was, or than it may be, and for long."""

from __future__ import annotations

import numpy as np
from detect.streaming import NUMBERS, TIMES, grows
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.hopelessly_slow import HopelesslySlow
from holdfast.domain.finding import Severity

HOUR = 3600.0


def run(detector: HopelesslySlow, looks: int, *, step_s: float, data_s: float = 0.01, left_h: float = 10.0, at: float = 0.0) -> HopelesslySlow:
    dice = np.random.default_rng(1)
    for second in range(looks):
        now = at + second
        took_s = step_s * float(np.exp(0.1 * dice.standard_normal()))
        parts = {"data": data_s, "compute": took_s - data_s}
        detector.look(took_s, parts, elapsed_s=now, needs_s=now + left_h * HOUR, now=now)
    return detector


def test_a_job_that_has_become_eight_times_slower_for_ten_minutes_is_hopeless_and_says_why() -> None:
    detector = run(HopelesslySlow(), 2000, step_s=0.1)
    assert detector.standing == []
    (finding,) = run(detector, 1000, step_s=0.8, data_s=0.7, left_h=80.0, at=2000.0).standing
    assert (finding.kind, finding.severity) == ("hopelessly_slow", Severity.CRITICAL)
    assert "most of it waiting for data" in finding.because
    assert "80 h more" in finding.because


def test_a_slow_quarter_of_an_hour_of_a_job_that_is_nearly_done_is_not() -> None:
    detector = run(HopelesslySlow(), 2000, step_s=0.1)
    assert run(detector, 1000, step_s=0.8, left_h=0.5, at=2000.0).standing == []


def test_five_slow_minutes_are_not() -> None:
    detector = run(HopelesslySlow(), 2000, step_s=0.1)
    assert run(detector, 300, step_s=0.8, left_h=80.0, at=2000.0).standing == []


def test_a_job_that_is_three_times_slower_is_slow_and_not_hopeless() -> None:
    detector = run(HopelesslySlow(), 2000, step_s=0.1)
    assert run(detector, 2000, step_s=0.3, left_h=30.0, at=2000.0).standing == []


def test_what_was_always_so_is_as_it_is() -> None:
    assert run(HopelesslySlow(), 4000, step_s=30.0, left_h=1000.0).standing == []


def test_slow_steps_among_quick_ones_are_not() -> None:
    detector = run(HopelesslySlow(), 2000, step_s=0.1)
    for turn in range(40):
        at = 2000.0 + 40 * turn
        detector = run(run(detector, 30, step_s=0.9, left_h=50.0, at=at), 10, step_s=0.1, left_h=50.0, at=at + 30)
        assert detector.standing == []


def test_many_times_what_is_allowed_is_hopeless_from_the_start() -> None:
    (finding,) = run(HopelesslySlow(allowed_s=12 * HOUR), 2000, step_s=1.0, left_h=100.0).standing
    assert "where 12 h are allowed" in finding.because
    assert run(HopelesslySlow(allowed_s=12 * HOUR), 2000, step_s=1.0, left_h=15.0).standing == []


def test_it_is_taken_back_when_the_pace_is_back() -> None:
    detector = run(run(HopelesslySlow(), 2000, step_s=0.1), 1000, step_s=0.8, left_h=80.0, at=2000.0)
    assert detector.standing
    assert run(detector, 1500, step_s=0.11, at=3000.0).standing == []


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, TIMES), max_size=100))
def test_whatever_is_read_nothing_breaks(looks: list[tuple[float, float, float, float, float]]) -> None:
    detector = HopelesslySlow(history=5, every=1, lasts_s=3.0, allowed_s=1.0)
    for step_s, data_s, elapsed_s, needs_s, now in looks:
        detector.look(step_s, {"data": data_s}, elapsed_s=elapsed_s, needs_s=needs_s, now=now)
    assert len(detector.standing) <= 1


def test_a_longer_run_takes_no_more_memory() -> None:
    assert grows(HopelesslySlow, lambda one, number: one.look(0.1, {"data": 0.01}, elapsed_s=number, needs_s=1e6, now=float(number)), 1500) < 1.1
