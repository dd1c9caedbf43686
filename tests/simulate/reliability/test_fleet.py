"""The formulas against a fleet that is played and knows none of them. In the quick tests the margin is four standard errors of what was played; the slow ones
play so much that within 1 % means something."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.goodput import Bucket
from holdfast.recover import shrink
from holdfast.simulate.reliability import capacity, copies, detection, failures, goodput, interval, rates, repair, spares
from holdfast.simulate.reliability.fleet import BUCKETS, Chances, Lives, play
from holdfast.simulate.reliability.goodput import Fault, Running

DAY_S = 86400.0
FAULTS = (
    Fault(name="exit", share=0.25, detect_s=0.1, diagnose_s=1.0, stop_s=1.0, rendezvous_s=43.0, restore_s=1.0),
    Fault(name="node", share=0.60, detect_s=4.0, diagnose_s=1.0, stop_s=1.0, replace_s=70.0, rendezvous_s=43.0, restore_s=6.0, behind_s=2.0, needs_node=True),
    Fault(name="hang", share=0.13, detect_s=60.0, diagnose_s=6.0, stop_s=1.0, replace_s=70.0, rendezvous_s=43.0, restore_s=6.0, behind_s=20.0),
    Fault(name="nan", share=0.02, detect_s=4289.0, stop_s=1.0, replace_s=70.0, rendezvous_s=43.0, restore_s=6.0),
)
LLAMA3 = Running(per_s=419 / (54 * DAY_S), interval_s=30.0, stall_s=0.04, faults=FAULTS)
SETTINGS = [
    LLAMA3,
    replace(LLAMA3, interval_s=1800.0, stall_s=20.0),
    Running(per_s=1 / 2000.0, interval_s=600.0, stall_s=60.0, faults=FAULTS),  # So often that recoveries are struck too.
    Running(per_s=1 / 500.0, interval_s=100.0, stall_s=10.0, faults=(replace(FAULTS[0], share=0.5, behind_s=110.0), replace(FAULTS[1], share=0.5))),
]
REJOINING = replace(
    LLAMA3, interval_s=300.0,
    faults=(
        replace(FAULTS[0], live_s=6.0), replace(FAULTS[1], replace_s=0.0, behind_s=0.0, live_s=6.0, smaller_s=300.0, kept=127 / 128, grow_s=60.0), *FAULTS[2:],
    ),
)  # fmt: skip


def errors(lives: Lives) -> dict[Bucket, float]:
    """Standard errors of the mean shares."""
    count = len(lives.seconds)
    return dict(zip(BUCKETS, (lives.seconds.std(axis=0, ddof=1) / lives.horizon_s / math.sqrt(count)).tolist(), strict=True))


@pytest.mark.parametrize("running", SETTINGS, ids=["llama3", "long intervals", "stormy", "copies behind"])
def test_goodput_and_every_part_of_it_are_as_played(running: Running) -> None:
    lives = play(running, 2000 / running.per_s, 100, seed=1)
    said, seen, error = goodput.parts(running), lives.parts(), errors(lives)
    for bucket in BUCKETS:
        assert abs(seen[bucket] - said[bucket]) <= 4 * error[bucket] + 1e-4 * said[bucket], bucket


@pytest.mark.parametrize("kept", [127 / 128, 0.5])
def test_where_survivors_go_on_goodput_is_as_played(kept: float) -> None:
    """Right to the first order in the rate: a failure that strikes while the gang is smaller, or grows, is counted as others are."""
    running = replace(REJOINING, faults=tuple(replace(one, kept=kept) if one.kept < 1.0 else one for one in REJOINING.faults))
    lives = play(running, 4000 / running.per_s, 100, seed=1)
    said, seen = goodput.parts(running), lives.parts()
    assert sum(said.values()) == pytest.approx(1.0)
    assert seen[Bucket.PRODUCTIVE] == pytest.approx(said[Bucket.PRODUCTIVE], abs=2e-4)
    assert seen[Bucket.SMALLER] == pytest.approx(said[Bucket.SMALLER], rel=0.03)
    assert seen[Bucket.RENDEZVOUS] == pytest.approx(said[Bucket.RENDEZVOUS], rel=0.03)


def test_a_node_that_comes_late_makes_the_gang_smaller_for_longer_and_nobody_waits() -> None:
    plenty, few = (play(REJOINING, 54 * DAY_S, 50, seed=1, chances=Chances(spares=count, repair_s=7 * DAY_S)).parts() for count in (200, 2))
    assert few[Bucket.WAIT] == 0.0
    assert few[Bucket.SMALLER] > 2 * plenty[Bucket.SMALLER]


@pytest.mark.slow
@pytest.mark.parametrize("running", SETTINGS, ids=["llama3", "long intervals", "stormy", "copies behind"])
def test_goodput_and_every_part_of_it_are_within_one_percent_of_what_is_played(running: Running) -> None:
    lives = play(running, 4000 / running.per_s, 1000, seed=2)
    said, seen = goodput.parts(running), lives.parts()
    for bucket in BUCKETS:
        assert seen[bucket] == pytest.approx(said[bucket], rel=0.01, abs=1e-12), bucket


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(1e-5, 2e-3), st.floats(0.5, 5000.0), st.floats(0.0, 60.0), st.integers(1, 6), st.floats(0.5, 2.0))
def test_every_second_of_every_life_is_in_exactly_one_bucket(seed: int, per_s: float, interval_s: float, stall_s: float, count: int, shape: float) -> None:
    running = Running(per_s=per_s, interval_s=interval_s, stall_s=stall_s, faults=FAULTS)
    lives = play(running, 2 * DAY_S, 7, seed=seed, chances=Chances(spares=count, repair_s=3600.0, repair_sigma=1.0, shape=shape))
    assert lives.seconds.sum(axis=1) == pytest.approx([2 * DAY_S] * 7)
    assert lives.seconds.min() >= -1e-6


def test_the_same_seed_plays_the_same_lives_and_another_does_not() -> None:
    first, again, other = (play(LLAMA3, 5 * DAY_S, 20, seed=seed).seconds for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


def test_a_fleet_that_never_fails_loses_only_its_saves() -> None:
    lives = play(replace(LLAMA3, per_s=0.0, interval_s=90.0, stall_s=10.0), 100_000.0, 3, seed=0)
    assert lives.goodput == pytest.approx([0.9] * 3)


def test_a_state_that_lies_far_away_is_lost_by_as_much_as_it_is_behind() -> None:
    """Behind by many intervals: the formula is right to the first order, which is all it promises."""
    running = replace(LLAMA3, faults=(replace(FAULTS[0], share=1.0, behind_s=600.0),))
    assert play(running, 54 * DAY_S, 200, seed=1).goodput.mean() == pytest.approx(goodput.goodput(running), rel=0.01)


def test_too_few_spares_are_waited_for_and_enough_are_not() -> None:
    mean = spares.in_repair(LLAMA3.per_s * 0.6, DAY_S)
    few, enough = (play(LLAMA3, 54 * DAY_S, 50, seed=1, chances=Chances(spares=count)) for count in (2, spares.spares_for(1e-6, mean)))
    assert few.parts()[Bucket.WAIT] > 0.2
    assert enough.parts()[Bucket.WAIT] < 1e-6


def test_without_a_spare_nothing_is_played() -> None:
    with pytest.raises(ValueError, match="at least one"):
        play(LLAMA3, DAY_S, 1, seed=1, chances=Chances(spares=0))


# Each formula by itself. Quick: four standard errors; slow: within 1 %.

DRAWS = [pytest.param(20_000, id="quick"), pytest.param(4_000_000, id="full", marks=pytest.mark.slow)]


def agrees(said: float, seen: np.ndarray, draws: int) -> None:  # type: ignore[type-arg]
    """A mean of many draws, against what the formula says."""
    margin = 0.01 * said if draws > 1e6 else 4 * float(seen.std()) / math.sqrt(len(seen)) + 1e-12
    assert abs(float(seen.mean()) - said) <= margin, f"{said:.6g} was said, {seen.mean():.6g} was seen"


@pytest.mark.parametrize("draws", DRAWS)
def test_counts_and_detection_are_as_drawn_node_by_node(draws: int) -> None:
    """Each node fails on its own; the formulas speak of the whole fleet."""
    dice, nodes, rate, seen = np.random.default_rng(1), 100, 0.02, 0.9
    counts = sum(dice.poisson(rate, draws) for _ in range(nodes))
    for count in range(4):
        agrees(failures.exactly(count, nodes * rate), counts == count, draws)
        agrees(failures.at_least(count, nodes * rate), counts >= count, draws)
    noticed = dice.binomial(counts, seen)
    agrees(detection.any_seen(seen, nodes * rate), noticed > 0, draws)
    agrees(detection.none_missed(seen, nodes * rate), noticed == counts, draws)
    agrees(failures.survives(1.0, nodes * rate), counts == 0, draws)


@pytest.mark.parametrize("draws", DRAWS)
def test_limits_hold_as_often_as_they_say(draws: int) -> None:
    """At least so often: counts are whole numbers, so exact limits can only be on the safe side."""
    tried = min(draws // 10, 20_000)
    limits = {count: rates.count_limits(count) for count in range(60)}
    counts = np.random.default_rng(2).poisson(20.0, tried)
    inside = np.array([limits[int(count)][0] <= 20.0 <= limits[int(count)][1] for count in counts])
    assert 0.95 - 4 * math.sqrt(0.05 * 0.95 / tried) <= inside.mean() <= 0.98


@pytest.mark.parametrize("draws", DRAWS)
def test_heartbeats_cry_for_nothing_and_notice_silence_as_often_and_as_soon_as_played(draws: int) -> None:
    dice, lost, misses = np.random.default_rng(7), 0.2, 3
    came = dice.random(draws) >= lost
    alarms = came[misses + 1 :] * 0.0
    in_a_row = np.ones(len(alarms), dtype=bool)
    for back in range(misses):
        in_a_row &= ~came[misses - back : len(came) - 1 - back]
    alarms[:] = in_a_row & came[: len(alarms)]  # So many missed, and the one before them had come: told once, however long it lasts.
    said = detection.false_alarms_per_day(1, heartbeat_s=1.0, misses=misses, lost=lost) / 86400
    assert abs(float(alarms.mean()) - said) <= (0.01 * said if draws > 1e6 else 5 * math.sqrt(said * 2 * misses / draws))
    since_last = dice.random(draws)  # Lost at any moment between two heartbeats; noticed when so many have failed to come.
    agrees(detection.silence_noticed_s(heartbeat_s=1.0, misses=misses), misses - since_last, draws)


@pytest.mark.parametrize("draws", DRAWS)
def test_repair_is_as_drawn(draws: int) -> None:
    dice = np.random.default_rng(3)
    times = dice.exponential(10.0, draws)
    agrees(repair.within(10.0, mean_s=10.0), times <= 10.0, draws)
    measured = repair.Percentiles(points=((0.0, 0.0), (0.5, 222.0), (0.9, 600.0), (1.0, 4000.0)))
    drawn = np.interp(dice.random(draws), *zip(*measured.points, strict=True))
    agrees(measured.within(500.0), drawn <= 500.0, draws)
    agrees(measured.mean_s, drawn, draws)


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("sigma", [0.0, 1.5], ids=["exponential", "heavy tail"])
def test_a_failure_finds_no_spare_as_often_as_palm_says(sigma: float, draws: int) -> None:
    """Failures one after the other, each node in repair for a time of its own; counted by who is still there when the next one comes."""
    dice, mean, at_once = np.random.default_rng(4), 5.0, 20_000
    found = []
    for _ in range(10 * draws // at_once if draws > 1e6 else 1):
        at = np.cumsum(dice.exponential(1.0, at_once))
        lasts = dice.exponential(mean, at_once) if not sigma else mean * np.exp(dice.normal(-sigma**2 / 2, sigma, at_once))
        ends = np.sort(at + lasts)
        found.append((np.arange(at_once) - np.searchsorted(ends, at))[at_once // 10 :])  # Began before, less ended before; once it has settled.
    there = np.concatenate(found)
    for count in (3, 5, 8, 10):
        said, seen = spares.stock_out(count, mean), float((there >= count).mean())
        # Neighbours see much the same repairs: as many draws say as much as there are mean repair times in them.
        margin = 0.01 * said if draws > 1e6 and said > 0.03 else 6 * math.sqrt(said * 2 * mean / len(there))
        assert abs(seen - said) <= margin, (count, said, seen)


@pytest.mark.parametrize("draws", DRAWS)
def test_copies_are_lost_as_often_as_drawn(draws: int) -> None:
    dice, nodes, lost = np.random.default_rng(5), 16, 5
    tried = min(draws, 400_000)
    gone = np.argsort(dice.random((tried, nodes)), axis=1) < lost
    agrees(copies.groups_lost(nodes, 2, lost), (gone[:, ::2] & gone[:, 1::2]).any(axis=1), draws)
    agrees(copies.groups_lost(nodes, 4, lost), gone.reshape(tried, 4, 4).all(axis=2).any(axis=1), 0)  # So rare that 1 % of it would be luck.
    agrees(copies.ring_lost(nodes, lost), (gone & np.roll(gone, 1, axis=1)).any(axis=1), draws)


def test_partners_are_lost_as_often_as_played() -> None:
    """Pairs whose nodes fail at random; a second failure within the exposure of the first loses state."""
    dice, nodes, node_per_s, exposed_s, horizon_s = np.random.default_rng(6), 200, 1e-4, 100.0, 2e6
    lost = 0
    for _ in range(nodes // 2):
        at = np.sort(dice.uniform(0.0, horizon_s, dice.poisson(2 * node_per_s * horizon_s)))
        who = dice.integers(0, 2, len(at))
        lost += int(((np.diff(at) < exposed_s) & (np.diff(who) != 0)).sum())
    said = copies.partners_lost_per_s(nodes, node_per_s=node_per_s, exposed_s=exposed_s) * horizon_s
    assert abs(lost - said) <= 4 * math.sqrt(said) + 0.01 * said


def test_the_break_even_of_shrinking_is_where_played_costs_cross() -> None:
    """Second by second: what a gang does not do while it waits, or does with fewer."""
    one = shrink.Smaller(kept=0.75, shrink_s=30.0, grow_s=50.0, restart_s=40.0)

    def undone(wait_s: float, *, shrinks: bool) -> float:
        if not shrinks:
            return sum(1.0 for _ in range(round(wait_s + one.restart_s)))
        speed = [0.0] * round(one.shrink_s) + [one.kept] * round(wait_s - one.shrink_s) + [0.0] * round(one.grow_s)
        return sum(1.0 - each for each in speed)

    crossing = next(wait for wait in range(30, 1000) if undone(wait, shrinks=True) < undone(wait, shrinks=False))
    assert crossing == pytest.approx(shrink.worth_shrinking_from_s(one), abs=1.0)


def test_a_fleet_of_the_capacity_that_was_said_does_the_work_in_time() -> None:
    workload = capacity.Workload(parameters=405e9, tokens=15.6e12, within_s=70 * DAY_S, flop_per_s=400e12)

    def on(gpus: int) -> Running:
        return replace(LLAMA3, per_s=LLAMA3.per_s * gpus / 16384)

    needed = capacity.needed(workload, 0, lambda gpus: goodput.goodput(on(gpus)), lambda gpus: on(gpus).interval_s)
    assert needed is not None
    done = play(on(needed.gpus), workload.within_s, 200, seed=1).seconds[:, 0].mean() * needed.gpus * workload.flop_per_s
    assert done == pytest.approx(6 * workload.parameters * workload.tokens, rel=0.01)


def test_the_exact_interval_is_the_best_of_those_played() -> None:
    stall_s = 20.0
    best = interval.choices(stall_s, LLAMA3.per_s)[-1].interval_s
    shares = {factor: play(replace(LLAMA3, interval_s=factor * best, stall_s=stall_s), 54 * DAY_S, 200, seed=1).goodput.mean() for factor in (0.5, 1.0, 2.0)}
    assert max(shares, key=lambda factor: shares[factor]) == 1.0


@pytest.mark.slow
def test_a_thousand_lives_of_llama_3_take_less_than_a_minute() -> None:
    import time

    began = time.process_time()
    play(LLAMA3, 54 * DAY_S, 1000, seed=1, chances=Chances(spares=20))
    assert time.process_time() - began < 60.0
