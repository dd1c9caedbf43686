"""The formulas by themselves: the textbook's values, done right; limits; bad input; and what must hold for any input."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.goodput import Bucket
from holdfast.recover import shrink
from holdfast.recover.copies import assign
from holdfast.recover.interval import optimum_s, share_lost
from holdfast.simulate.reliability import capacity, copies, detection, failures, goodput, interval, published, rates, repair, spares
from holdfast.simulate.reliability.goodput import Fault, Running

M = 54 * 86400 / 419  # Llama 3.


def test_the_widely_copied_example_done_right() -> None:
    """100 nodes, 0.01 failures a node and unit of time, one unit, each detected with probability 0.9, repair with a mean of 10."""
    mean = 100 * 0.01 * 1
    assert [round(failures.exactly(count, mean), 4) for count in range(4)] == [0.3679, 0.3679, 0.1839, 0.0613]
    assert round(failures.at_least(4, mean), 4) == 0.0190
    assert round(detection.any_seen(0.9, mean), 4) == 0.5934
    assert round(detection.none_missed(0.9, mean), 4) == 0.9048
    assert round(repair.within(10.0, mean_s=10.0), 4) == 0.6321
    assert round(repair.done_by(0.999, mean_s=10.0), 1) == 69.1
    assert round(detection.seen_by_one_of(3, 0.9), 3) == 0.999  # What the example took for the chance that failures are detected.


def test_llama_3_s_rate_has_the_limits_that_its_count_allows() -> None:
    seen, _ = published.RATES["llama3"]
    low, high = seen.limits_per_s(16384)
    assert 1 / seen.per_s(16384) / 3600 == pytest.approx(3.093, abs=0.001)
    assert (round(1 / high / 3600, 2), round(1 / low / 3600, 2)) == (2.81, 3.41)
    assert seen.per_s(8) * 86400 == pytest.approx(3.79e-3, rel=0.001)


@pytest.mark.parametrize(
    ("count", "low", "high"),  # Garwood, as printed in tables of exact Poisson limits.
    [(0, 0.0, 2.996), (1, 0.02532, 5.572), (5, 1.623, 11.668), (10, 4.795, 18.390), (100, 81.36, 121.63)],
)
def test_limits_of_a_count_are_the_exact_ones(count: int, low: float, high: float) -> None:
    assert rates.count_limits(count) == pytest.approx((low, high), rel=5e-4)


def test_a_rate_that_was_given_has_no_limits_but_itself() -> None:
    assert rates.given(3600.0, 8).limits_per_s(16) == (2 / 3600.0, 2 / 3600.0)


def test_the_causes_of_llama_3_are_all_there() -> None:
    assert sum(cause.count for cause in published.LLAMA3_CAUSES) == 419
    assert sum(published.shares(published.LLAMA3_CAUSES).values()) == pytest.approx(1.0)


def test_false_alarms_of_heartbeats_fall_by_a_thousand_with_each_miss_allowed() -> None:
    per_day = [detection.false_alarms_per_day(2048, heartbeat_s=1.0, misses=misses, lost=1e-3) for misses in (3, 4, 5)]
    assert per_day == pytest.approx([0.18, 1.8e-4, 1.8e-7], rel=0.02)
    assert detection.silence_noticed_s(heartbeat_s=1.0, misses=5) == 4.5


def test_how_many_injections_say_that_nothing_is_missed() -> None:
    assert [detection.injections_for(share) for share in (0.99, 0.999)] == [299, 2995]


def test_measured_percentiles_say_what_an_exponential_does_not() -> None:
    measured = repair.Percentiles(points=((0.0, 0.0), (0.5, 222.0), (0.9, 600.0), (1.0, 40000.0)))
    assert measured.within(222.0) == 0.5
    assert (measured.within(0.0), measured.within(1e9)) == (0.0, 1.0)
    assert measured.mean_s == pytest.approx(0.5 * 111 + 0.4 * 411 + 0.1 * 20300)


@pytest.mark.parametrize("bad", [(), ((0.5, 1.0),), ((0.0, 5.0), (1.0, 1.0)), ((0.1, 0.0), (1.0, 1.0)), ((0.0, 1.0), (0.5, 2.0), (0.5, 3.0), (1.0, 4.0))])
def test_percentiles_that_are_none_are_refused(bad: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="from share 0 to share 1"):
        repair.Percentiles(points=bad)


@given(st.floats(0.0, 1e4), st.integers(0, 50))
def test_chances_of_all_counts_add_up(mean: float, count: int) -> None:
    below = sum(failures.exactly(one, mean) for one in range(count))
    assert below + failures.at_least(count, mean) == pytest.approx(1.0, abs=1e-9)


@given(st.floats(0.01, 1e4), st.floats(0.5, 0.999))
def test_the_most_likely_bound_is_the_smallest_that_holds(mean: float, share: float) -> None:
    most = failures.most_likely_below(share, mean)
    assert failures.at_least(most + 1, mean) <= 1 - share + 1e-12
    assert most == 0 or failures.at_least(most, mean) > 1 - share


# How often to save.


@given(st.floats(1e-3, 100.0), st.floats(1e3, 1e7))
def test_the_exact_interval_is_never_beaten_and_daly_s_comes_close(stall_s: float, mean_s: float) -> None:
    young, daly, exact = interval.choices(stall_s, 1 / mean_s)
    assert exact.interval_s == optimum_s(stall_s, 1 / mean_s)
    assert exact.lost <= daly.lost * (1 + 1e-9)
    assert exact.lost <= young.lost * (1 + 1e-9)
    assert daly.interval_s == pytest.approx(exact.interval_s, rel=0.01)


def test_save_at_every_step_is_best_only_if_a_save_costs_next_to_nothing() -> None:
    assert interval.worth_it_below_s(6.0, 1 / M) == pytest.approx(1.6e-3, rel=0.02)
    assert interval.best_s(1.6e-3, 1 / M, step_s=6.0) == 6.0
    assert interval.best_s(0.04, 1 / M, step_s=6.0) == 30.0


@given(st.floats(1e-3, 60.0), st.floats(1e3, 1e7), st.floats(0.1, 100.0))
def test_the_best_interval_is_of_whole_steps_and_not_beaten_by_its_neighbours(stall_s: float, mean_s: float, step_s: float) -> None:
    best = interval.best_s(stall_s, 1 / mean_s, step_s=step_s)
    steps = round(best / step_s)
    assert steps >= 1
    assert best == pytest.approx(steps * step_s)
    for near in (steps - 1, steps + 1):
        assert near < 1 or share_lost(best, stall_s, 1 / mean_s) <= share_lost(near * step_s, stall_s, 1 / mean_s) * (1 + 1e-9)


# Goodput.

seconds = st.floats(0.0, 5000.0)
mixes = st.lists(st.tuples(st.floats(0.01, 1.0), st.lists(seconds, min_size=6, max_size=6)), min_size=1, max_size=5)


@given(mixes, st.floats(0.1, 1e4), st.floats(0.0, 100.0), st.just(0.0) | st.floats(1e-12, 1.0))
def test_every_second_is_in_exactly_one_bucket_and_none_is_negative(
    mix: list[tuple[float, list[float]]], interval_s: float, stall_s: float, per_s: float
) -> None:
    whole = sum(share for share, _ in mix)
    faults = tuple(
        Fault(
            name=f"{number}", share=share / whole, detect_s=times[0], diagnose_s=times[1], stop_s=times[2], replace_s=times[3], rendezvous_s=times[4],
            restore_s=times[5], behind_s=min(times[5], interval_s),
        )
        for number, (share, times) in enumerate(mix)
    )  # fmt: skip
    found = goodput.parts(Running(per_s=per_s, interval_s=interval_s, stall_s=stall_s, faults=faults))
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    assert min(found.values()) >= -1e-9


def test_a_fleet_that_never_fails_only_saves() -> None:
    found = goodput.parts(Running(per_s=0.0, interval_s=90.0, stall_s=10.0, faults=(Fault(name="none", share=1.0, detect_s=1e6),)))
    assert {bucket: share for bucket, share in found.items() if share > 1e-12} == pytest.approx({Bucket.PRODUCTIVE: 0.9, Bucket.SAVE: 0.1})


@pytest.mark.parametrize(
    ("restart_s", "interval_s", "percent"),  # 16,384 GPUs at Llama 3's rate, saves that cost nothing.
    [(600, 1800, 87.3), (600, 300, 93.5), (60, 1800, 91.6), (60, 300, 98.1), (10, 300, 98.6), (600, 6, 94.7), (60, 6, 99.4), (10, 6, 99.9), (1200, 1800, 82.7)],
)
def test_goodput_at_16384_gpus(restart_s: float, interval_s: float, percent: float) -> None:
    running = Running(per_s=1 / M, interval_s=interval_s, stall_s=0.0, faults=(Fault(name="all", share=1.0, rendezvous_s=restart_s),))
    assert 100 * goodput.goodput(running) == pytest.approx(percent, abs=0.06)
    assert goodput.first_order(running) == pytest.approx(goodput.goodput(running), abs=0.021)


def test_the_loss_per_failure_is_the_budget_of_a_goodput() -> None:
    assert [round(goodput.loss_per_failure_s(share, 1 / M)) for share in (0.9, 0.97, 0.99, 0.999)] == [1114, 334, 111, 11]


# Spares, shrinking, copies, capacity.


@given(st.floats(0.01, 50.0), st.floats(1e-6, 0.5))
def test_spares_are_as_few_as_the_chance_allows(mean: float, chance: float) -> None:
    count = spares.spares_for(chance, mean)
    assert spares.stock_out(count, mean) <= chance
    assert spares.stock_out(count - 1, mean) > chance


smaller = st.builds(
    lambda replicas, shrink_s, grow_s, restart_s: shrink.Smaller(kept=(replicas - 1) / replicas, shrink_s=shrink_s, grow_s=grow_s, restart_s=restart_s),
    st.integers(2, 1000), st.floats(1.0, 600.0), st.floats(1.0, 600.0), st.floats(1.0, 600.0),
)  # fmt: skip


@given(smaller, st.floats(0.0, 1e6))
def test_shrinking_pays_exactly_when_the_wait_is_longer_than_the_break_even(one: shrink.Smaller, wait_s: float) -> None:
    break_even_s = shrink.worth_shrinking_from_s(one)
    if wait_s < one.shrink_s or math.isclose(wait_s, break_even_s, rel_tol=1e-9):
        return  # A node that comes before the smaller gang is up: the formula is of longer waits.
    assert (shrink.shrinking_costs_s(wait_s, one) < shrink.waiting_costs_s(wait_s, one)) == (wait_s > break_even_s)


@given(st.integers(2, 1000), st.floats(1.0, 600.0), st.floats(0.0, 1e6))
def test_who_waits_that_long_and_then_shrinks_never_pays_more_than_twice_the_best(replicas: int, restart_s: float, wait_s: float) -> None:
    one = shrink.Smaller(kept=(replicas - 1) / replicas, shrink_s=restart_s, grow_s=restart_s, restart_s=restart_s)
    best = min(shrink.waiting_costs_s(wait_s, one), shrink.shrinking_costs_s(wait_s, one))
    assert shrink.patient_costs_s(wait_s, one) <= 2.0 * best + 1e-6


def test_copies_by_placement() -> None:
    assert 1 - copies.groups_lost(16, 2, 2) == pytest.approx(0.9333, abs=1e-4)
    assert copies.ring_lost(16, 2) == pytest.approx(2 / 15)
    assert copies.domain_lost(2048, 2, 32, spread=False) == pytest.approx(0.22, abs=0.005)
    assert copies.domain_lost(2048, 2, 32, spread=True) == 0.0
    years = 1 / copies.partners_lost_per_s(2048, node_per_s=1 / M / 2048, exposed_s=120.0) / (365.25 * 86400)
    assert years == pytest.approx(67, abs=1)


@pytest.mark.parametrize(("nodes", "lost"), [(6, 7), (7, 2)])
def test_copies_that_cannot_be_laid_out_are_refused(nodes: int, lost: int) -> None:
    with pytest.raises(ValueError, match="multiple of the copies"):
        copies.groups_lost(nodes, 2, lost)


@given(st.integers(2, 8), st.integers(1, 8))
def test_the_placement_in_use_survives_the_loss_of_any_one_domain(domains: int, each: int) -> None:
    """What the formula calls spread is what `recover` does."""
    nodes = {f"{domain}-{number}": f"{domain}" for domain in range(domains) for number in range(each)}
    holders = assign(list(nodes), nodes, {}).holders
    assert holders.keys() == nodes.keys()
    for gone in {*nodes.values()}:
        assert all(nodes[owner] != gone or nodes[holders[owner]] != gone for owner in nodes)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=6))
def test_spread_is_promised_exactly_where_the_placement_in_use_finds_a_node_elsewhere_for_each(sizes: list[int]) -> None:
    nodes = {f"{domain}-{number}": f"{domain}" for domain, size in enumerate(sizes) for number in range(size)}
    without = assign(list(nodes), nodes, {}).without
    assert (not without) == copies.spreads(len(nodes), 2, max(sizes))
    assert copies.domain_lost(len(nodes), 2, max(sizes), spread=True) == (1.0 if without else 0.0)


WORKLOAD = capacity.Workload(parameters=405e9, tokens=15.6e12, within_s=70 * 86400, flop_per_s=400e12, growth_per_year=2.0)


def test_capacity_finds_gpus_and_goodput_together() -> None:
    found = capacity.needed(WORKLOAD, 0, lambda gpus: 0.9, lambda gpus: 30.0)
    assert found is not None
    assert found.gpus * 0.9 * WORKLOAD.flop_per_s * WORKLOAD.within_s >= 6 * 405e9 * 15.6e12
    assert (found.gpus - 8) * 0.9 * WORKLOAD.flop_per_s * WORKLOAD.within_s < 6 * 405e9 * 15.6e12
    assert found.nodes * 8 == found.gpus
    assert found.state_gb == pytest.approx(7290)
    later = capacity.needed(WORKLOAD, 2, lambda gpus: 0.9, lambda gpus: 30.0)
    assert later is not None
    assert later.gpus == pytest.approx(4 * found.gpus, rel=0.001)
    assert later.state_gb == pytest.approx(2 * found.state_gb)


def test_capacity_says_when_more_gpus_would_only_fail_faster() -> None:
    assert capacity.needed(WORKLOAD, 0, lambda gpus: math.exp(-gpus / 2000), lambda gpus: 30.0) is None
