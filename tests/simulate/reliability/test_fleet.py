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
from holdfast.recover.interval import share_lost
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


@pytest.mark.slow
@pytest.mark.parametrize("kept", [127 / 128, 15 / 16])
def test_where_survivors_go_on_every_part_is_within_one_percent_of_what_is_played(kept: float) -> None:
    """Failures so far apart that the second order in the rate is below that."""
    faults = tuple(replace(one, kept=kept) if one.kept < 1.0 else one for one in REJOINING.faults)
    running = replace(REJOINING, per_s=REJOINING.per_s / 10, faults=faults)
    said, seen = goodput.parts(running), play(running, 4000 / running.per_s, 1000, seed=2).parts()
    for bucket in BUCKETS:
        assert seen[bucket] == pytest.approx(said[bucket], rel=0.01, abs=1e-12), bucket


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
@pytest.mark.parametrize("shape", [0.0, 6.0], ids=["exponential", "a power of time"])
def test_a_failure_finds_no_spare_as_often_as_palm_says_however_seldom_that_is(shape: float, draws: int) -> None:
    """Failures are drawn, and of the repair of each the chance that it still lasts; so many of them do with the chance that all these make together."""
    dice, mean, at_once, counts = np.random.default_rng(8), 5.0, 20_000, (10, 12, 14)
    back = 60 if not shape else 280  # Failures looked back upon; earlier ones are repaired.
    found = []
    for _ in range(max(1, draws // (5 if shape else 1) // at_once)):
        ages = np.cumsum(dice.exponential(1.0, (at_once, back)), axis=1)
        lasts = np.exp(-ages / mean) if not shape else (1.0 + ages / mean / (shape - 1.0)) ** -shape
        below = np.zeros((max(counts), at_once))  # The chance that just so many last; those at the end and beyond are not followed.
        below[0] = 1.0
        for one in lasts.T:
            below[1:] += (below[:-1] - below[1:]) * one
            below[0] *= 1.0 - one
        found.append([1.0 - below[:count].sum(axis=0) for count in counts])
    for number, count in enumerate(counts):
        agrees(spares.stock_out(count, mean), np.concatenate([one[number] for one in found]), draws)


@pytest.mark.parametrize("draws", DRAWS)
def test_copies_are_lost_as_often_as_drawn(draws: int) -> None:
    dice, nodes, at_once = np.random.default_rng(5), 16, 20_000
    for lost in (5, 8):
        pairs, fours, ring = [], [], []
        for _ in range(draws // at_once):
            gone = dice.random((at_once, nodes)).argsort(axis=1) < lost
            pairs.append((gone[:, ::2] & gone[:, 1::2]).any(axis=1))
            fours.append(gone.reshape(at_once, 4, 4).all(axis=2).any(axis=1))
            ring.append((gone & np.roll(gone, 1, axis=1)).any(axis=1))
        agrees(copies.groups_lost(nodes, 2, lost), np.concatenate(pairs), draws)
        agrees(copies.groups_lost(nodes, 4, lost), np.concatenate(fours), draws)
        agrees(copies.ring_lost(nodes, lost), np.concatenate(ring), draws)


@pytest.mark.parametrize("draws", DRAWS)
def test_a_domain_takes_partners_drawn_at_random_as_often_as_drawn(draws: int) -> None:
    """Where its 32 nodes stand in a fleet of 2,048 whose pairs are neighbours."""
    dice, lost = np.random.default_rng(9), []
    for _ in range(draws // 20_000):
        where = np.sort(dice.integers(0, 2048, (20_000, 32)), axis=1)
        where = where[(np.diff(where) > 0).all(axis=1)]  # Nobody stands in two places: the others are drawn in vain.
        lost.append((np.diff(where // 2) == 0).any(axis=1))
    agrees(copies.domain_lost(2048, 2, 32, spread=False), np.concatenate(lost), draws)


@pytest.mark.parametrize("draws", DRAWS)
def test_partners_are_lost_as_often_as_played(draws: int) -> None:
    """Pairs whose nodes fail at random: a failure loses state if the partner fails within the exposure of the first."""
    dice, node_per_s, exposed_s, pairs = np.random.default_rng(6), 1e-4, 100.0, 10
    horizon_s = draws / node_per_s / pairs
    failed, lost = 0, 0
    for _ in range(pairs):
        both = [np.sort(dice.uniform(0.0, horizon_s, dice.poisson(node_per_s * horizon_s))) for _ in range(2)]
        for one, other in (both, both[::-1]):
            failed += len(one)
            lost += int((np.searchsorted(other, one + exposed_s) > np.searchsorted(other, one)).sum())
    said = copies.partners_lost_per_s(2 * pairs, node_per_s=node_per_s, exposed_s=exposed_s) * horizon_s
    assert abs(lost - said) <= (0.01 * said if draws > 1e6 else 4 * math.sqrt(2 * said)), f"{said:.6g} was said, {lost} of {failed} were seen"


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


@pytest.mark.parametrize("kept", [0.75, 15 / 16])
@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_waiting_and_going_on_with_fewer_cost_what_is_played(kept: float, times: float) -> None:
    """At half of the break-even, at it, and at three times as much, where who goes on loses next to nothing of its work."""
    one = shrink.Smaller(kept=kept, shrink_s=30.0, grow_s=50.0, restart_s=40.0)
    even_s = shrink.worth_shrinking_from_s(one)
    wait_s = times * even_s
    waits = Fault(name="waits", share=1.0, live_s=1e-6, replace_s=wait_s, rendezvous_s=one.restart_s)
    fewer = Fault(name="fewer", share=1.0, live_s=1e-6, rendezvous_s=one.shrink_s, smaller_s=max(0.0, wait_s - one.shrink_s), kept=kept, grow_s=one.grow_s)
    costs = []
    for fault in (waits, fewer):
        lives = play(Running(per_s=1e-6, interval_s=60.0, stall_s=0.0, faults=(fault,)), 1e9, 20, seed=1)
        costs.append(float((1.0 - lives.goodput).sum() * lives.horizon_s / lives.failures.sum()))
    assert costs == pytest.approx([shrink.waiting_costs_s(wait_s, one), shrink.shrinking_costs_s(wait_s, one)], rel=0.01)
    assert (costs[0] < costs[1]) == (times < 1.0) or costs[0] == pytest.approx(costs[1], rel=0.01)


def test_a_fleet_of_the_capacity_that_was_said_does_the_work_in_time() -> None:
    workload = capacity.Workload(parameters=405e9, tokens=15.6e12, within_s=70 * DAY_S, flop_per_s=400e12)

    def on(gpus: int) -> Running:
        return replace(LLAMA3, per_s=LLAMA3.per_s * gpus / 16384)

    needed = capacity.needed(workload, 0, lambda gpus: goodput.goodput(on(gpus)), lambda gpus: on(gpus).interval_s)
    assert needed is not None
    done = play(on(needed.gpus), workload.within_s, 200, seed=1).seconds[:, 0].mean() * needed.gpus * workload.flop_per_s
    assert done == pytest.approx(6 * workload.parameters * workload.tokens, rel=0.01)


def test_storage_memory_and_bandwidth_are_those_of_a_fleet_that_saves() -> None:
    """Save by save: what is sent, what is written, and what then lies in storage and in the memory of each node."""
    workload = capacity.Workload(parameters=405e9, tokens=15.6e12, within_s=70 * DAY_S, flop_per_s=400e12, copies=3, checkpoints_kept=4)
    needed = capacity.needed(workload, 0, lambda gpus: 0.98, lambda gpus: LLAMA3.interval_s)
    assert needed is not None
    node_gb = 405 * 18 / needed.nodes
    buffers: dict[str, list[float]] = {}
    stored: list[float] = []
    sent_gb = written_gb = 0.0
    lives = play(LLAMA3, 54 * DAY_S, 20, seed=1).seconds.mean(axis=0)
    saves = round(lives[BUCKETS.index(Bucket.SAVE)] / LLAMA3.stall_s)
    training_s = sum(lives[BUCKETS.index(bucket)] for bucket in (Bucket.PRODUCTIVE, Bucket.SAVE, Bucket.RECOMPUTE))
    every = round(workload.durable_every_s / LLAMA3.interval_s)
    for save in range(saves):
        for owner in ("own", *(f"of neighbour {number}" for number in range(1, workload.copies))):
            buffers[owner] = [*buffers.get(owner, []), node_gb][-2:]  # One that counts, and one that is being filled.
            sent_gb += node_gb if owner != "own" else 0.0
        if save % every == 0:
            stored = [*stored, 405 * 18.0][-workload.checkpoints_kept :]
            written_gb += stored[-1]
    assert needed.copy_gb_per_s == pytest.approx(sent_gb / training_s, rel=0.01)
    assert needed.storage_gb_per_s == pytest.approx(written_gb / training_s, rel=0.01)
    assert needed.storage_gb == pytest.approx(sum(stored), rel=0.01)
    assert needed.memory_gb == pytest.approx(sum(map(sum, buffers.values())), rel=0.01)


_NOTHING_BUT_SAVES = replace(LLAMA3, stall_s=20.0, faults=(Fault(name="exit", share=1.0),))


@pytest.mark.parametrize("failures_played", [pytest.param(400, id="quick"), pytest.param(4000, id="full", marks=pytest.mark.slow)])
def test_what_an_interval_costs_is_as_played_and_the_best_is_where_that_is_least(failures_played: int) -> None:
    """A parabola through what was lost around the exact interval, over its logarithm, is lowest there."""
    best_s = interval.choices(_NOTHING_BUT_SAVES.stall_s, _NOTHING_BUT_SAVES.per_s)[-1].interval_s
    shifts, lost = np.linspace(-0.4, 0.4, 9), []
    for shift in shifts:
        running = replace(_NOTHING_BUT_SAVES, interval_s=best_s * math.exp(shift))
        lost.append(1.0 - float(play(running, failures_played / running.per_s, 1000, seed=1).goodput.mean()))
        assert lost[-1] == pytest.approx(share_lost(running.interval_s, running.stall_s, running.per_s), rel=0.01)
    _, square, slope, _ = np.polyfit(shifts, lost, 3)
    assert abs(slope / square / 2.0) < (0.01 if failures_played > 1000 else 0.04)


@pytest.mark.parametrize("rule", ["Young", "Daly", "exact"])
def test_what_each_rule_is_said_to_lose_is_lost_when_played(rule: str) -> None:
    said = next(one for one in interval.choices(_NOTHING_BUT_SAVES.stall_s, _NOTHING_BUT_SAVES.per_s) if one.rule == rule)
    played = play(replace(_NOTHING_BUT_SAVES, interval_s=said.interval_s), 400 / _NOTHING_BUT_SAVES.per_s, 500, seed=3)
    assert 1.0 - float(played.goodput.mean()) == pytest.approx(said.lost, rel=0.01)


@pytest.mark.slow
def test_a_thousand_lives_of_llama_3_take_less_than_a_minute() -> None:
    import time

    began = time.process_time()
    play(LLAMA3, 54 * DAY_S, 1000, seed=1, chances=Chances(spares=20))
    assert time.process_time() - began < 60.0
