"""A gap: the validation loss has turned and the training loss has not."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest
from detect.streaming import NUMBERS, grows
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.gap import Gap
from holdfast.domain.finding import Severity


def watched(detector: Gap, training: np.ndarray, validation: np.ndarray, *, every: int = 20, at: int = 0) -> Gap:
    """A validation each `every` looks; in between the last one is said again, as a gauge is."""
    for number, (train, valid) in enumerate(zip(training, validation, strict=True)):
        for look in range(every):
            detector.look(float(train), float(valid), float(at + number * every + look))
    return detector


def losses(seed: int, *, turns_at: int = 10, points: int = 25, rise: float = 0.04, noise: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    dice, time = np.random.default_rng(seed), np.arange(points)
    training = 0.2 + 2.0 * np.exp(-time / 8)
    validation = np.where(time <= turns_at, 0.6 + 1.6 * np.exp(-time / 4), 0.6 + 1.6 * np.exp(-turns_at / 4) + rise * (time - turns_at))
    return training * np.exp(noise * dice.standard_normal(points)), validation * np.exp(noise * dice.standard_normal(points))


@pytest.mark.parametrize("seed", range(5))
def test_a_validation_loss_that_rises_while_training_goes_on_is_told(seed: int) -> None:
    (finding,) = watched(Gap(), *losses(seed)).standing
    assert (finding.kind, finding.severity) == ("gap", Severity.WARNING)
    assert "while the training loss fell" in finding.because


@pytest.mark.parametrize("seed", range(40))
def test_a_validation_loss_that_comes_down_with_noise_is_left_alone(seed: int) -> None:
    assert watched(Gap(), *losses(seed, turns_at=60, points=60, noise=0.04), every=3).standing == []


@pytest.mark.parametrize("seed", range(40))
def test_a_validation_loss_that_is_flat_is_left_alone(seed: int) -> None:
    assert watched(Gap(), *losses(seed, rise=0.0, points=60, noise=0.02), every=3).standing == []


def test_one_bad_validation_is_left_alone() -> None:
    training, validation = losses(1, turns_at=25)
    validation[20] *= 3
    assert watched(Gap(), training, validation).standing == []


def test_losses_that_both_rise_are_no_gap() -> None:
    training, validation = losses(1)
    training[10:] = training[10] * 1.1 ** np.arange(15)
    assert watched(Gap(), training, validation).standing == []


def test_a_few_validations_say_nothing_yet() -> None:
    training, validation = losses(1, turns_at=2, points=7, rise=0.3)
    assert watched(Gap(), training, validation).standing == []


def test_it_is_taken_back_when_the_rise_is_gone() -> None:
    detector = watched(Gap(), *losses(1))
    assert detector.standing
    training, validation = losses(2, turns_at=30, points=30)
    assert watched(detector, training, 0.5 * validation, at=500).standing == []


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=400))
def test_whatever_is_read_nothing_breaks(looks: list[tuple[float, float]]) -> None:
    detector = Gap()
    for now, (training, validation) in enumerate(looks):
        detector.look(training, validation, float(now))
    assert len(detector.standing) <= 1


def test_more_validations_take_no_more_memory() -> None:
    assert grows(Gap, lambda detector, number: detector.look(1.0, 1.0 + number % 7 / 100, float(number)), 1000) < 1.1


def test_without_a_validation_nothing_is_said() -> None:
    detector = Gap()
    for now in range(1000):
        detector.look(1.0 / (now + 1), nan, float(now))
    assert detector.standing == []
