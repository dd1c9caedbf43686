"""A plateau: said of what came down and then stays, and of no training that still learns, however slowly."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan

import numpy as np
import pytest
from detect.streaming import NUMBERS, grows
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.plateau import Plateau
from holdfast.domain.finding import Severity
from holdfast.domain.job import Target

LOOKS = 8000


def watched(detector: Plateau, values: Iterable[float], *, rate: float = 1e-3, progress: float = nan, at: int = 0) -> Plateau:
    for look, value in enumerate(values, at):
        detector.look(value, rate, progress, float(look))
    return detector


def noisy(clean: np.ndarray, seed: int = 1, noise: float = 0.05) -> np.ndarray:
    return clean * np.exp(noise * np.random.default_rng(seed).standard_normal(len(clean)))


def stuck(looks: int = LOOKS, level: float = 0.9) -> np.ndarray:
    return level + 1.4 * np.exp(-np.arange(looks) / 200)


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_stays_where_it_is_for_most_of_the_run_is_worth_knowing(seed: int) -> None:
    (finding,) = watched(Plateau(), noisy(stuck(), seed)).standing
    assert (finding.kind, finding.severity) == ("plateau", Severity.INFO)
    assert "over the last 50% of the run" in finding.because


@pytest.mark.parametrize("power", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_tail_is_progress(power: float, seed: int) -> None:
    tail = noisy(0.5 + 2.0 * (np.arange(LOOKS) + 10.0) ** -power, seed)
    assert not any(watched(detector, [value], at=look).standing for detector in (Plateau(),) for look, value in enumerate(tail))


def test_what_never_came_down_is_left_alone() -> None:
    assert watched(Plateau(), noisy(np.full(LOOKS, 1.39))).standing == []


def test_what_is_all_but_learned_is_left_alone() -> None:
    assert watched(Plateau(), noisy(stuck(level=0.02))).standing == []


def test_while_the_learning_rate_moves_a_schedule_is_at_work() -> None:
    detector = Plateau()
    for look, value in enumerate(noisy(stuck())):
        detector.look(float(value), 1e-3 * (1 - look / LOOKS), nan, float(look))
    assert detector.standing == []


def test_a_flat_hour_of_a_run_of_a_hundred_is_no_plateau() -> None:
    assert watched(Plateau(), noisy(stuck()), progress=0.01).standing == []
    assert watched(Plateau(), noisy(stuck()), progress=0.9).standing


def test_with_a_target_that_is_not_reached_it_is_a_warning() -> None:
    target = Target(metric="validation_loss", value=0.5)
    (finding,) = watched(Plateau(target=target, name="validation_loss"), noisy(stuck())).standing
    assert finding.severity is Severity.WARNING
    assert "the target is validation_loss <= 0.5" in finding.because


def test_an_accuracy_that_no_longer_rises_is_flat_too() -> None:
    rising = noisy(0.8 - 0.7 * np.exp(-np.arange(LOOKS) / 200))
    detector = watched(Plateau(target=Target(metric="accuracy_ratio", value=0.95, below=False), name="accuracy_ratio"), rising)
    assert [finding.kind for finding in detector.standing] == ["plateau"]


def test_a_target_that_was_reached_is_reached_and_one_that_noise_touched_is_not() -> None:
    assert watched(Plateau(target=Target(metric="loss", value=1.0)), noisy(stuck())).standing == []
    assert watched(Plateau(target=Target(metric="loss", value=0.78)), noisy(stuck())).standing


def test_it_is_taken_back_when_the_loss_falls_again() -> None:
    detector = watched(Plateau(), noisy(stuck()))
    assert detector.standing
    assert watched(detector, noisy(0.9 * np.exp(-np.arange(4000) / 2000)), at=LOOKS).standing == []


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=700))
def test_whatever_is_read_nothing_breaks(looks: list[tuple[float, float, float]]) -> None:
    detector = Plateau(history=10)
    for now, (value, rate, progress) in enumerate(looks):
        detector.look(value, rate, progress, float(now))
    assert len(detector.standing) <= 1


def test_a_longer_run_takes_no_more_memory() -> None:
    values = noisy(stuck())
    assert grows(Plateau, lambda detector, number: detector.look(float(values[number % LOOKS]), 1e-3, nan, float(number)), 2000) < 1.3
