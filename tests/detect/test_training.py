"""Loss, gradients, NaN and replicas: what is a fault, and what is only training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.detect.gradient import Gradient
from holdfast.detect.loss import LossJump
from holdfast.detect.not_finite import NotFinite
from holdfast.detect.replicas import Replicas


def losses(seed: int, looks: int, *, first: float = 2.3, last: float = 0.2, noise: float = 0.03) -> list[float]:
    """A training that comes down, with noise in proportion."""
    dice = np.random.default_rng(seed)
    clean = last + (first - last) * np.exp(-np.arange(looks) / 60)
    return list(clean * np.exp(noise * dice.standard_normal(looks)))


def watched(detector: LossJump, values: list[float], rate: float = 1e-3, at: float = 0.0) -> LossJump:
    for look, value in enumerate(values):
        detector.look(value, rate, at + look)
    return detector


@pytest.mark.parametrize("seed", range(10))
def test_a_training_that_comes_down_is_left_alone(seed: int) -> None:
    assert watched(LossJump(), losses(seed, 900)).standing == []


def test_labels_that_are_wrong_from_one_moment_on_are_a_jump() -> None:
    (finding,) = watched(LossJump(), losses(1, 300) + [2.4] * 10).standing
    assert finding.kind == "loss_jump"
    assert "progress" in finding.because


def test_one_bad_batch_is_not_a_jump() -> None:
    assert watched(LossJump(), [*losses(1, 300), 9.0, *losses(2, 100, first=0.3)]).standing == []


def test_a_jump_that_passes_is_taken_back() -> None:
    detector = watched(LossJump(), losses(1, 300) + [3.0] * 20)
    assert detector.standing
    assert watched(detector, [0.3] * 20, at=320).standing == []


def test_a_warm_restart_of_the_learning_rate_is_left_alone() -> None:
    detector = watched(LossJump(), losses(1, 300), rate=1e-5)
    assert watched(detector, [1.9] * 60, rate=1e-3, at=300).standing == []


def test_a_learning_rate_that_blows_the_training_up_is_told_of_although_it_rose() -> None:
    detector = watched(LossJump(), losses(1, 300), rate=1e-5)
    assert watched(detector, [30.0] * 60, rate=1.0, at=300).standing


def test_a_jump_that_is_half_gone_when_it_would_be_told_is_left_alone() -> None:
    detector = watched(LossJump(), losses(1, 300))
    assert not any(watched(detector, [0.2 + 4.0 * 0.8**look], at=300 + look).standing for look in range(30))


def test_a_jump_that_comes_back_only_to_the_first_loss_is_told() -> None:
    """Labels that are wrong: a model that was sure of itself is very wrong first, and then as wrong as one that knows nothing."""
    sure = [2.3 + 4.0 * 0.5**look for look in range(10)]
    assert watched(LossJump(), losses(1, 300) + sure).standing


def test_a_loss_far_above_the_first_is_told_although_it_comes_back() -> None:
    assert watched(LossJump(), [*losses(1, 300), 500.0, 300.0, 60.0, 40.0, 20.0]).standing


def test_the_third_time_a_loss_blows_up_is_told_as_the_first_was_and_each_time_once() -> None:
    detector, at, told = LossJump(), 300, []
    watched(detector, losses(1, 300))
    for _ in range(3):
        for value in [*(20_000.0 * 0.8**look for look in range(60)), *[0.2] * 60]:  # It comes back slowly.
            stood = bool(detector.standing)
            detector.look(value, 1e-3, float(at))
            at += 1
            if detector.standing and not stood:
                told.append(at)
        assert not detector.standing
    assert len(told) == 3


def test_a_game_whose_loss_goes_down_a_little_and_back_is_left_alone() -> None:
    dice = np.random.default_rng(4)
    assert watched(LossJump(), [*np.linspace(1.39, 1.0, 90), *np.linspace(1.3, 1.5, 60)] + 0.005 * dice.standard_normal(150)).standing == []


def test_a_first_lesson_that_is_learned_within_seconds_is_still_progress() -> None:
    easy = [1.4, 1.2, 1.0, 0.8, 0.6, *(0.5 * np.exp(-np.arange(300) / 10) + 0.001)]
    assert watched(LossJump(), [*easy, *([0.45] * 60)]).standing == []


def test_a_loss_that_never_comes_down_and_only_wanders_is_left_alone() -> None:
    dice = np.random.default_rng(3)
    wandering = list(1.0 + 0.3 * np.sin(np.arange(2000) / 50) + 0.2 * dice.standard_normal(2000))
    assert watched(LossJump(), wandering).standing == []


def test_a_negative_loss_that_jumps_is_seen() -> None:
    falling = [-value for value in np.linspace(1.0, 50.0, 300)]
    assert watched(LossJump(), [*falling, *([5.0] * 10)]).standing


def test_a_loss_that_is_nan_says_nothing_here() -> None:
    assert watched(LossJump(), losses(1, 300) + [math.nan] * 60).standing == []


def test_nan_is_blamed_on_the_rank_that_had_it_first() -> None:
    detector = NotFinite()
    detector.look({2: 50, 0: 51, 1: 51, 3: 51}, dict.fromkeys(range(4), 60), "aabb", 1.0)
    (finding,) = detector.standing
    assert (finding.ranks, finding.node, finding.step) == ((2,), "b", 50)


def test_who_has_not_told_of_the_step_yet_is_waited_for_before_another_is_blamed() -> None:
    detector = NotFinite()
    detector.look({0: 51, 1: 51}, {0: 60, 1: 60, 2: 40, 3: 40}, "aabb", 1.0)  # Node b was heard half a second before node a.
    assert detector.standing == []
    detector.look({0: 51, 1: 51, 2: 50, 3: 51}, {0: 60, 1: 60, 2: 75, 3: 75}, "aabb", 2.0)
    (finding,) = detector.standing
    assert (finding.ranks, finding.node, finding.since) == ((2,), "b", 1.0)


def test_who_never_tells_of_the_step_is_not_waited_for_for_ever() -> None:
    detector = NotFinite()
    for second in range(6):
        assert detector.standing == []
        detector.look({0: 51}, {0: 60, 1: 40}, "ab", float(second))
    (finding,) = detector.standing
    assert (finding.ranks, finding.node) == ((0,), "a")


def test_nan_on_all_ranks_at_once_is_nobodys() -> None:
    detector = NotFinite()
    detector.look(dict.fromkeys(range(4), 50), dict.fromkeys(range(4), 60), "aabb", 1.0)
    (finding,) = detector.standing
    assert (finding.ranks, finding.node) == ((), "")
    assert "every rank" in finding.because


def test_one_step_that_is_not_finite_is_not_told_of() -> None:
    detector = NotFinite()
    detector.look({1: 50}, dict.fromkeys(range(4), 50), "aabb", 1.0)
    assert detector.standing == []


def test_what_is_finite_again_is_taken_back() -> None:
    detector = NotFinite()
    detector.look({1: 50}, dict.fromkeys(range(4), 60), "aabb", 1.0)
    detector.look({}, dict.fromkeys(range(4), 70), "aabb", 2.0)
    assert detector.standing == []


def test_the_replica_that_differs_is_named() -> None:
    detector = Replicas()
    detector.look({0: (64, 7), 1: (64, 7), 2: (64, 8), 3: (64, 7)}, 1.0)
    (finding,) = detector.standing
    assert (finding.ranks, finding.step) == ((2,), 64)


@pytest.mark.parametrize("said", [{0: 7, 1: 8}, {0: 7, 1: 8, 2: 7, 3: 8}, {0: 7, 1: 8, 2: 9}])
def test_where_as_many_say_one_thing_as_another_all_are_named_and_none_is_believed(said: dict[int, int]) -> None:
    detector = Replicas()
    detector.look({rank: (64, digest) for rank, digest in said.items()}, 1.0)
    assert [one.ranks for one in detector.standing] == [tuple(said)]


def test_checksums_of_different_steps_are_not_compared() -> None:
    detector = Replicas()
    detector.look({0: (64, 7), 1: (128, 9)}, 1.0)
    assert detector.standing == []
    detector.look({0: (128, 9), 1: (128, 9)}, 2.0)
    assert detector.standing == []


def test_a_replica_that_says_its_checksum_late_is_still_compared() -> None:
    detector = Replicas()
    detector.look({0: (64, 7), 1: (64, 7)}, 1.0)
    detector.look({0: (128, 9), 1: (128, 9), 2: (64, 5)}, 2.0)
    assert detector.standing[0].ranks == (2,)


def test_what_once_disagreed_stands() -> None:
    detector = Replicas()
    detector.look({0: (64, 7), 1: (64, 8), 2: (64, 7)}, 1.0)
    detector.look({0: (128, 9), 1: (128, 9), 2: (128, 9)}, 2.0)
    assert detector.standing


def normed(detector: Gradient, norms: list[float], at: float = 0.0) -> Gradient:
    for look, norm in enumerate(norms):
        detector.look(norm, at + look)
    return detector


def test_a_gradient_a_hundred_times_as_large_for_seconds_explodes() -> None:
    dice = np.random.default_rng(1)
    usual = list(np.exp(0.3 * dice.standard_normal(200)))
    detector = normed(Gradient(), usual + [100.0] * 6)
    assert [finding.kind for finding in detector.standing] == ["gradient_explosion"]
    assert normed(detector, usual, at=206).standing == []


def test_a_gradient_that_explodes_again_is_told_again() -> None:
    detector = Gradient()
    for _ in range(3):
        for norm in [0.6] * 100:
            detector.look(norm, 0.0)
        assert not detector.standing
        for norm in [150.0] * 20:
            detector.look(norm, 0.0)
        assert detector.standing


def test_a_gradient_that_is_all_but_gone_vanishes() -> None:
    detector = normed(Gradient(), [1.0] * 300 + [1e-5] * 60)
    assert [finding.kind for finding in detector.standing] == ["gradient_vanishing"]


@pytest.mark.parametrize("seed", range(10))
def test_a_gradient_with_a_heavy_tail_is_left_alone(seed: int) -> None:
    dice = np.random.default_rng(seed)
    assert normed(Gradient(), list(np.exp(1.0 * dice.standard_normal(3000)))).standing == []


def test_of_two_that_differ_while_a_third_is_not_heard_nobody_is_blamed_and_nothing_counts_as_agreed() -> None:
    detector = Replicas()
    detector.look({0: (64, 7), 1: (64, 7), 2: (64, 7)}, 1.0)
    detector.look({0: (128, 8), 1: (64, 7), 2: (128, 8)}, 2.0)
    detector.look({0: (192, 9), 1: (192, 5), 2: (128, 8)}, 3.0)
    assert detector.standing == [], "rank 2 may agree with either"
    detector.look({0: (192, 9), 1: (192, 5), 2: (192, 9)}, 4.0)
    assert [(one.ranks, one.step, one.sound) for one in detector.standing] == [((1,), 192, 64)], "of step 128 rank 1 was not heard"


def test_where_most_ranks_say_the_same_the_others_are_not_waited_for() -> None:
    detector = Replicas()
    detector.look({0: (64, 7), 1: (64, 5), 2: (64, 7), 3: (64, 7), 4: (0, 1)}, 1.0)
    assert [one.ranks for one in detector.standing] == [(1,)]
