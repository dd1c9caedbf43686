"""Slow ranks and slow jobs: who is slow, by how much, in which part; and when nobody is."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.detect.slow_job import SlowJob
from holdfast.detect.slow_rank import SlowRank

RANKS = 4
NODES = ("a", "a", "b", "b")


def played(detector: SlowRank, own: list[np.ndarray], *, since: float = 0.0) -> SlowRank:
    """Ranks that work in step: the slowest sets the pace, and the others wait for it."""
    for look, seconds in enumerate(own):
        step = np.full(len(seconds), np.nanmax(seconds) + 0.01)
        parts = {"compute": seconds - 0.02, "data": np.full(len(seconds), 0.02)}
        detector.look(step, step - seconds, parts, NODES[: len(seconds)], since + look)
    return detector


def noisy(seed: int, looks: int, ranks: int = RANKS, noise: float = 0.1) -> list[np.ndarray]:
    dice = np.random.default_rng(seed)
    return [0.1 * np.exp(noise * dice.standard_normal(ranks)) for _ in range(looks)]


def slowed(rows: list[np.ndarray], rank: int, factor: float) -> list[np.ndarray]:
    return [row * np.where(np.arange(len(row)) == rank, factor, 1.0) for row in rows]


def test_a_rank_at_70_percent_of_its_speed_is_named_with_its_node_and_the_part_that_is_longer() -> None:
    (finding,) = played(SlowRank(ranks=RANKS), slowed(noisy(1, 40), 2, 1 / 0.7)).standing
    assert (finding.kind, finding.ranks, finding.node) == ("slow_rank", (2,), "b")
    assert "most of it in compute" in finding.because


def test_a_rank_ten_times_slower_says_how_much_of_every_step_is_lost_by_it() -> None:
    (finding,) = played(SlowRank(ranks=RANKS), slowed(noisy(1, 40), 2, 10.0)).standing
    assert 0.8 < finding.share < 0.92


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_ten_percent_is_nobodys_fault(seed: int) -> None:
    assert played(SlowRank(ranks=RANKS), noisy(seed, 600)).standing == []


def test_of_two_ranks_the_slow_one_is_known() -> None:
    (finding,) = played(SlowRank(ranks=2), slowed(noisy(1, 40, ranks=2), 1, 1.5)).standing
    assert finding.ranks == (1,)


def test_a_rank_that_was_slow_for_a_moment_is_not_told_of() -> None:
    rows = [*noisy(1, 30), *slowed(noisy(2, 8), 0, 3.0), *noisy(3, 30)]
    assert played(SlowRank(ranks=RANKS), rows).standing == []


def test_a_rank_that_keeps_up_again_is_taken_back() -> None:
    detector = played(SlowRank(ranks=RANKS), slowed(noisy(1, 40), 3, 1.5))
    assert detector.standing
    assert played(detector, noisy(2, 40), since=40.0).standing == []


def test_where_communication_is_not_known_nobody_is_accused() -> None:
    detector = SlowRank(ranks=RANKS)
    for look in range(60):
        detector.look(np.full(RANKS, 0.1), np.full(RANKS, np.nan), {}, NODES, look)
    assert detector.standing == []


def test_among_a_thousand_ranks_three_slow_ones_are_found_and_no_other() -> None:
    rows = noisy(5, 40, ranks=1000)
    for rank in (17, 400, 999):
        rows = slowed(rows, rank, 1.4)
    detector = SlowRank(ranks=1000)
    for look, seconds in enumerate(rows):
        detector.look(np.full(1000, seconds.max()), seconds.max() - seconds, {}, ["a"] * 1000, look)
    assert [finding.ranks for finding in detector.standing] == [(17,), (400,), (999,)]


def paced(detector: SlowJob, steps: list[float], *, at: float = 0.0, **parts: list[float]) -> SlowJob:
    for look, step in enumerate(steps):
        detector.look(step, {name: seconds[look] for name, seconds in parts.items()}, at + look)
    return detector


def test_steps_that_take_half_as_long_again_are_a_slow_job() -> None:
    (finding,) = paced(SlowJob(), [0.1] * 100 + [0.16] * 20).standing
    assert finding.kind == "slow_job"
    assert "1.6 times" in finding.because


def test_when_the_time_goes_into_data_it_is_called_so() -> None:
    data = [0.01] * 100 + [0.08] * 20
    (finding,) = paced(SlowJob(), [0.1] * 100 + [0.17] * 20, data=data, communication=[0.02] * 120).standing
    assert finding.kind == "data_stall"


def test_a_look_that_is_half_slow_does_not_hide_where_the_time_goes() -> None:
    steps, waits = [0.06] * 100 + [0.13] + [0.21] * 7, [0.01] * 100 + [0.03] + [0.16] * 7
    (finding,) = paced(SlowJob(), steps, communication=waits, data=[0.001] * 108).standing
    assert finding.kind == "slow_communication"
    assert "a step takes 210 ms" in finding.because
    assert "150 ms of that is waiting for other ranks" in finding.because


def test_a_few_long_steps_are_not_a_slow_job() -> None:
    assert paced(SlowJob(), ([0.1] * 10 + [1.0]) * 30).standing == []


def test_a_job_that_is_slow_from_the_start_is_as_it_is() -> None:
    assert paced(SlowJob(), [3.0] * 400).standing == []


def test_a_slow_job_that_recovers_is_taken_back_and_can_be_slow_again() -> None:
    detector = paced(SlowJob(), [0.1] * 100 + [0.2] * 30)
    assert detector.standing
    assert paced(detector, [0.1] * 100, at=130).standing == []
    assert paced(detector, [0.2] * 30, at=230).standing


def test_a_pace_that_stays_is_the_usual_one_after_a_while() -> None:
    detector = paced(SlowJob(forget_s=200.0), [0.1] * 100 + [0.2] * 40)
    assert detector.standing
    assert paced(detector, [0.2] * 400, at=140).standing == []
