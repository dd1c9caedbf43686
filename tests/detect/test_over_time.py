"""Limits of time: what will be beyond them, what is, and what takes the time. Nothing is said of a job that keeps them."""

from __future__ import annotations

from math import nan

import pytest
from detect.streaming import NUMBERS, grows
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.ending import Ending
from holdfast.detect.over_time import OverTime, Spent
from holdfast.detect.where import Where
from holdfast.domain.finding import Severity
from holdfast.domain.job import Limits, Target

HOUR = 3600.0


def run(detector: OverTime, hours: float, *, needs_h: float, begin_h: float = 0.0, progress: float = 0.0, where: str = "") -> OverTime:
    """So many hours at the pace of a job that needs `needs_h` in all."""
    for minute in range(1, round(hours * 60) + 1):
        elapsed_s = begin_h * HOUR + minute * 60.0
        done = min(1.0, progress + minute / (60.0 * needs_h))
        detector.look(Spent(elapsed_s=elapsed_s, progress=done, where=where), elapsed_s)
    return detector


def kinds(detector: OverTime) -> list[tuple[str, str]]:
    return [(finding.kind, finding.of) for finding in detector.standing]


def test_a_job_that_will_need_nineteen_hours_of_twelve_is_told_of_within_the_first() -> None:
    detector = run(OverTime(limits=Limits(job_s=12 * HOUR)), 1.0, needs_h=19.0, where="61% of a step is waiting for data")
    (finding,) = detector.standing
    assert (finding.kind, finding.severity) == ("over_time_soon", Severity.WARNING)
    assert finding.because == "at this pace it needs 19 h, 12 h are allowed; 61% of a step is waiting for data"


@pytest.mark.parametrize("needs_h", [1.0, 6.0, 11.9])
def test_a_job_that_keeps_its_limit_is_left_alone(needs_h: float) -> None:
    assert run(OverTime(limits=Limits(job_s=12 * HOUR)), needs_h, needs_h=needs_h).standing == []


def test_without_limits_nothing_is_said() -> None:
    assert run(OverTime(limits=Limits()), 48.0, needs_h=1000.0).standing == []


def test_beyond_the_limit_it_is_over_time_and_no_longer_only_soon() -> None:
    detector = run(OverTime(limits=Limits(job_s=2 * HOUR)), 2.5, needs_h=4.0)
    (finding,) = detector.standing
    assert (finding.kind, finding.of) == ("over_time", "job")
    assert "at this pace it needs 4 h" in finding.because


def test_a_job_that_catches_up_is_taken_back() -> None:
    detector = run(OverTime(limits=Limits(job_s=12 * HOUR)), 2.0, needs_h=19.0)
    assert kinds(detector) == [("over_time_soon", "job")]
    assert run(detector, 4.0, needs_h=8.0, begin_h=2.0, progress=2 / 19).standing == []


def test_ten_slow_minutes_of_a_long_job_are_not_told() -> None:
    detector = run(OverTime(limits=Limits(job_s=12 * HOUR)), 4.0, needs_h=11.0)
    detector = run(detector, 1 / 6, needs_h=40.0, begin_h=4.0, progress=4 / 11)
    assert detector.standing == []


def test_where_nobody_says_how_much_there_is_to_do_only_what_is_beyond_is_told() -> None:
    detector = OverTime(limits=Limits(job_s=HOUR))
    for minute in range(60):
        detector.look(Spent(elapsed_s=60.0 * minute), 60.0 * minute)
    assert detector.standing == []
    detector.look(Spent(elapsed_s=3700.0), 3700.0)
    assert kinds(detector) == [("over_time", "job")]


def epochs(detector: OverTime, minutes_each: list[float]) -> list[list[tuple[str, str]]]:
    """What stood at the end of each epoch."""
    elapsed_s, stood = 0.0, []
    for number, minutes in enumerate(minutes_each):
        for second in range(0, round(60 * minutes), 10):
            detector.look(Spent(elapsed_s=elapsed_s + second, epoch=number + second / (60 * minutes)), elapsed_s + second)
        elapsed_s += 60 * minutes
        stood.append(kinds(detector))
    return stood


def test_an_epoch_that_takes_too_long_is_told_before_and_after_and_taken_back_after_a_good_one() -> None:
    over, none = [("over_time", "epoch")], []
    assert epochs(OverTime(limits=Limits(epoch_s=600.0)), [8, 15, 15, 8, 8]) == [none, over, over, over, none]


def test_an_epoch_that_will_be_too_long_is_told_ahead() -> None:
    detector = OverTime(limits=Limits(epoch_s=600.0))
    for second in range(0, 400, 10):
        detector.look(Spent(elapsed_s=float(second), epoch=second / 1200.0), float(second))
    assert kinds(detector) == [("over_time_soon", "epoch")]
    assert detector.standing[0].because == "at this pace epoch 0 takes 20 min, 10 min are allowed"


def test_a_target_that_is_not_reached_in_its_time_is_told_with_where_it_is() -> None:
    detector = OverTime(limits=Limits(target=Target(metric="validation_loss", value=0.5), target_s=6 * HOUR))
    detector.look(Spent(elapsed_s=6 * HOUR - 1, target=0.8), 1.0)
    assert detector.standing == []
    detector.look(Spent(elapsed_s=6 * HOUR + 1, target=0.7), 2.0)
    assert detector.standing[0].because == "validation_loss <= 0.5 was to be reached within 6 h, and it is at 0.7 after 6 h"


def test_a_target_that_was_reached_once_is_reached() -> None:
    detector = OverTime(limits=Limits(target=Target(metric="accuracy_ratio", value=0.9, below=False), target_s=HOUR))
    for second in range(3):
        detector.look(Spent(elapsed_s=100.0 + second, target=0.91), float(second))
    detector.look(Spent(elapsed_s=2 * HOUR, target=0.5), 9.0)
    assert detector.standing == []


def test_ground_that_is_made_good_again_is_not_progress_twice() -> None:
    ending = Ending()
    for minute in range(61):
        ending.look(60.0 * minute, minute / 600)
    for minute in range(40):
        ending.look(3600.0 + 60.0 * minute, (30 + minute) / 600)
    needs_s = ending.needs_s()
    assert needs_s is not None
    assert needs_s > 12 * HOUR


def test_a_long_evaluation_is_no_pace() -> None:
    detector = run(OverTime(limits=Limits(job_s=12 * HOUR)), 0.1, needs_h=10.0)
    for second in range(1200):
        detector.look(Spent(elapsed_s=360.0 + second, progress=0.01), 360.0 + second)
    assert detector.standing == []


def test_what_takes_the_time_is_named() -> None:
    where = Where()
    assert where.in_words(1.0) == "where the time goes cannot be seen"
    for _ in range(10):
        where.look({"data": 0.6, "compute": 0.3, "communication": 0.1, "optimizer": nan})
    assert where.in_words(0.95) == "60% of a step is waiting for data"
    assert "50% of the time went into starts, faults and work done again" in where.in_words(0.5)


def test_where_nothing_is_slow_too_little_time_was_allowed() -> None:
    where = Where()
    where.look({"data": 0.02, "compute": 0.9, "communication": 0.08})
    assert "90% of a step is computing: the time allowed is too short" in where.in_words(0.97)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=200))
def test_whatever_is_read_nothing_breaks(looks: list[tuple[float, float, float, float]]) -> None:
    limits = Limits(job_s=5.0, epoch_s=1.0, target=Target(metric="loss", value=0.0), target_s=3.0)
    detector = OverTime(limits=limits, looks=1)
    for now, (elapsed_s, progress, epoch, target) in enumerate(looks):
        detector.look(Spent(elapsed_s=elapsed_s, progress=progress, epoch=epoch, target=target), float(now))
    assert len(detector.standing) <= 5


def test_a_longer_run_takes_no_more_memory() -> None:
    make = lambda: OverTime(limits=Limits(job_s=1e9, epoch_s=1e9))  # noqa: E731
    assert grows(make, lambda one, number: one.look(Spent(elapsed_s=float(number), progress=number / 1e6, epoch=number / 100), float(number)), 1000) < 1.1
