"""Interval: the exact optimum, within its bounds, under all that the rate may be; checked against brute force and against simulated failures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import numpy.typing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.rate import Rate, gamma_quantile, gamma_share
from holdfast.recover.interval import (
    LONGEST_S,
    SAVING_MAX,
    UNMEASURED_S,
    WORTH_CHANGING,
    Measured,
    Prior,
    decide,
    one_plus_w0,
    optimum_s,
    posterior,
    share_lost,
)


def mean_cost(measured: Measured, stall_s: float, interval_s: float) -> float:
    return sum(weight * share_lost(interval_s, stall_s, per_s) for weight, per_s in posterior(measured).points())


# The numbers underneath. References: mpmath 1.4.1 at 60 digits.


@pytest.mark.parametrize(
    ("excess", "value"),  # 1 + lambertw(-exp(-(1 + excess)))
    [
        (0.0, 0.0),
        (1e-18, 1.4142135617064284e-9),
        (1e-12, 1.4142128957065069e-6),
        (1e-9, 4.4720692885813662e-5),
        (4e-5, 0.0089176251432092164),
        (5e-5, 0.0099666944815045706),
        (6e-5, 0.010914487718310235),
        (1e-3, 0.044057192259048082),
        (0.01, 0.13483475106683469),
        (0.1, 0.38318316820829483),
        (1.0, 0.84140566043696064),
        (5.0, 0.99751508066485055),
        (30.0, 0.99999999999996558),
        (1e6, 1.0),
    ],
)
def test_lamberts_function_has_eleven_digits_even_where_all_those_of_w0_are_lost(excess: float, value: float) -> None:
    assert one_plus_w0(excess) == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize(
    ("shape", "x", "share"),  # gammainc(shape, 0, x, regularized=True)
    [
        (0.02, 1e-30, 0.2540224661497238),
        (0.02, 1e-3, 0.8807722325464478),
        (0.02, 2.0, 0.99899126961986112),
        (0.5, 0.1, 0.34527915398142297),
        (0.5, 3.0, 0.98569412156457036),
        (1.0, 0.7, 0.50341469620859049),
        (3.02, 1.5, 0.18750702314569914),
        (3.02, 8.0, 0.98588663396123341),
        (12.02, 12.0, 0.53608331452473159),
        (100.02, 80.0, 0.017020456591756646),
        (100.02, 130.0, 0.99723334642448809),
        (2500.02, 2450.0, 0.15854179627312945),
        (2500.02, 2600.0, 0.97615869142176989),
    ],
)
def test_the_share_of_a_gamma_distribution_below_a_value(shape: float, x: float, share: float) -> None:
    assert gamma_share(shape, x) == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize(
    ("shape", "share", "x"),
    [
        (0.02, 0.5, 5.0686676564801789e-16),
        (0.02, 0.95, 0.045909823599740647),
        (0.02, 0.999, 2.0063208017766133),
        (0.1, 0.05, 5.9307112914142675e-14),
        (0.5, 0.05, 0.0019660700000097614),
        (0.5, 0.95, 1.920729410347063),
        (1.0, 0.95, 2.995732273553991),
        (1.02, 0.05, 0.05494070771784306),
        (3.02, 0.05, 0.82796167100490961),
        (3.02, 0.95, 6.3257007736555603),
        (12.02, 0.5, 11.688360246137358),
        (100.02, 0.05, 84.157630551217905),
        (100.02, 0.9999, 141.55384017025095),
        (2500.02, 0.95, 2582.8275883237633),
    ],
)
def test_the_quantile_of_a_gamma_distribution(shape: float, share: float, x: float) -> None:
    assert gamma_quantile(shape, share) == pytest.approx(x, rel=1e-9)


@given(st.floats(0.01, 5000.0), st.floats(0.001, 0.9999))
def test_the_quantile_undoes_the_share(shape: float, share: float) -> None:
    x = gamma_quantile(shape, share)
    assert x == 0.0 or gamma_share(shape, x) == pytest.approx(share, rel=1e-8)


@given(st.floats(0.02, 1000.0), st.floats(1.0, 1e9))
def test_the_points_stand_for_all_rates(failures: float, watched_s: float) -> None:
    rate = Rate(failures=failures, watched_s=watched_s)
    points = rate.points()
    assert sum(weight for weight, _ in points) == pytest.approx(1.0)
    assert sum(weight * per_s for weight, per_s in points) == pytest.approx(rate.mean)
    assert [per_s for _, per_s in points] == sorted(per_s for _, per_s in points)


# The optimum.


def wall_s_per_s(interval_s: float, stall_s: float, between_s: float, restart_s: float) -> float:
    return between_s * math.exp(restart_s / between_s) * math.expm1((interval_s + stall_s) / between_s) / interval_s


@pytest.mark.parametrize("restart_s", [0.0, 600.0])
@pytest.mark.parametrize("between_s", [300.0, 11_135.0, 1e6, 1e8])
@pytest.mark.parametrize("stall_s", [0.002, 0.04, 1.0, 20.0, 120.0])
def test_the_optimum_is_that_of_brute_force_whatever_a_restart_takes(stall_s: float, between_s: float, restart_s: float) -> None:
    grid = optimum_s(stall_s, 1.0 / between_s) * numpy.linspace(0.9, 1.1, 20_001)
    # In as many digits as there are, because near the least value the cost is flat; its logarithm, because that is least at the same place.
    costs = numpy.log(numpy.expm1(((grid + stall_s) / between_s).astype(numpy.longdouble)) / grid) + restart_s / between_s
    assert grid[int(costs.argmin())] == pytest.approx(optimum_s(stall_s, 1.0 / between_s), rel=1e-3)
    best = wall_s_per_s(optimum_s(stall_s, 1.0 / between_s), stall_s, between_s, restart_s)
    wide = optimum_s(stall_s, 1.0 / between_s) * numpy.geomspace(0.01, 10.0, 500)
    assert all(best <= wall_s_per_s(float(interval_s), stall_s, between_s, restart_s) * (1.0 + 1e-12) for interval_s in wide)


@pytest.mark.parametrize(("stall_s", "interval_s"), [(0.002, 6.7), (0.04, 29.8), (0.2, 66.6), (1.0, 149.0), (20.0, 654.0)])
def test_the_optimum_at_the_rate_of_a_run_on_16384_gpus(stall_s: float, interval_s: float) -> None:
    assert optimum_s(stall_s, 1.0 / 11_135.0) == pytest.approx(interval_s, rel=5e-3)  # 419 failures in 54 days: arXiv 2407.21783.


@given(st.floats(1e-3, 1e4), st.floats(0.0, 100.0), st.floats(1e-9, 1e-2))
def test_the_share_lost_is_what_the_expected_duration_says(interval_s: float, stall_s: float, per_s: float) -> None:
    assert share_lost(interval_s, stall_s, per_s) == pytest.approx(1.0 - 1.0 / wall_s_per_s(interval_s, stall_s, 1.0 / per_s, 0.0), abs=1e-6)


def test_without_failures_only_saving_costs() -> None:
    assert share_lost(9.0, 1.0, 0.0) == 0.1


MEASURED = st.builds(
    Measured, step_s=st.floats(0.01, 20.0), nodes=st.integers(1, 20_000), failures=st.integers(0, 50), node_h=st.floats(0.0, 1e6),
    stall_s=st.floats(0.001, 200.0), durable_s=st.floats(0.0, 3000.0), restart_s=st.floats(0.0, 600.0),
    prior=st.builds(Prior, failures=st.floats(0.02, 5.0), node_h=st.floats(10.0, 1e4)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(MEASURED)
def test_no_other_number_of_steps_within_the_bounds_costs_less(measured: Measured) -> None:
    decided = decide(measured)
    shortest = max(1, math.ceil(measured.durable_s / measured.step_s))
    longest = max(shortest, math.floor(max(LONGEST_S, decided.stall_s / SAVING_MAX) / measured.step_s))
    assert shortest <= decided.every <= longest
    points = posterior(measured).points()
    for steps in {round(steps) for steps in numpy.geomspace(shortest, longest, 60)} | {decided.every - 1, decided.every + 1}:
        if shortest <= steps <= longest:
            assert decided.overhead <= sum(weight * share_lost(steps * measured.step_s, decided.stall_s, per_s) for weight, per_s in points) * (1.0 + 1e-7)


@settings(max_examples=60, deadline=None)
@given(MEASURED)
def test_shares_are_shares_and_the_mean_lies_in_its_interval(measured: Measured) -> None:
    decided = decide(measured)
    assert 0.0 <= decided.goodput <= 1.0 - decided.overhead + 1e-12 <= 1.0 + 1e-12
    assert decided.failure_every_low_s <= decided.failure_every_high_s
    assert decided.failure_every_low_s <= decided.failure_every_s
    assert decided.interval_s == decided.every * measured.step_s


@pytest.mark.parametrize(
    ("stall_s", "failures", "hours", "longer", "dearer"),
    [
        (0.04, 3, 9.0, 1.000, 0.0000),  # Once anything was seen there is no difference to speak of.
        (20.0, 3, 9.0, 1.003, 0.0000),
        (20.0, 1, 3.0, 1.011, 0.0001),
        (0.04, 0, 0.0, 1.039, 0.0007),
        (1.00, 0, 0.0, 1.259, 0.0192),
        (20.0, 0, 0.0, 2.791, 0.2317),  # Before that, with a dear save: at the mean it would cost almost a quarter more.
    ],
)
def test_a_rate_that_is_hardly_known_asks_for_more_than_the_optimum_at_its_mean(
    stall_s: float, failures: int, hours: float, longer: float, dearer: float
) -> None:
    measured = Measured(step_s=0.01, nodes=2048, failures=failures, node_h=2048 * hours, stall_s=stall_s)
    decided = decide(measured)
    plug_in_s = optimum_s(stall_s, posterior(measured).mean)
    assert decided.interval_s / plug_in_s == pytest.approx(longer, abs=0.001)
    assert mean_cost(measured, stall_s, plug_in_s) / decided.overhead - 1.0 == pytest.approx(dearer, abs=0.0001)


@pytest.mark.parametrize(("failures", "node_h"), [(0, 0.0), (0, 5000.0), (1, 5000.0), (3, 5000.0), (40, 50.0)])
def test_few_points_cost_what_a_fine_sum_over_the_rates_costs(failures: int, node_h: float) -> None:
    measured = Measured(step_s=1.0, nodes=1000, failures=failures, node_h=node_h, stall_s=2.0)
    rate = posterior(measured)
    drawn = numpy.random.default_rng(7).gamma(rate.failures, 1.0 / rate.watched_s, 400_000)
    for interval_s in (10.0, 100.0, 1000.0):
        exponent = drawn * (interval_s + 2.0)
        shares = 1.0 - drawn * interval_s / numpy.expm1(numpy.maximum(exponent, 1e-300))
        noise = shares.std() / math.sqrt(len(drawn))
        assert mean_cost(measured, 2.0, interval_s) == pytest.approx(shares.mean(), abs=4.0 * noise, rel=2e-3)


# Bounds, hysteresis, what was given.

RUN = Measured(step_s=0.12, nodes=64, failures=3, node_h=31.0 * 64, stall_s=0.04, durable_s=10.0, restart_s=20.0)


def test_the_reason_is_a_sentence_with_the_figures() -> None:
    assert decide(RUN).because == (
        "a save costs 0.04 s, a failure is expected every 11 h (5 h to 38 h, 3 seen in 31 h): "
        "losing work and saving cost least together at one save every 55 s = 458 steps"
    )


def test_a_save_is_never_asked_for_before_the_last_one_can_be_durable() -> None:
    decided = decide(replace(RUN, durable_s=90.0))
    assert decided.every == 750
    assert decided.because.endswith("at one save every 55 s; it is 90 s = 750 steps, since a save takes 90 s to be durable")


def test_a_save_comes_at_least_every_half_hour_so_that_a_wrong_rate_costs_little() -> None:
    decided = decide(replace(RUN, stall_s=2.0, failures=0, node_h=1e5))
    assert decided.interval_s == pytest.approx(LONGEST_S)
    assert decided.because.endswith("; it is 30 min = 15000 steps, so that a wrong rate costs little")
    # If the rate is a hundred times the mean believed, the half hour costs 5 %.
    assert share_lost(LONGEST_S, 2.0, 100.0 * posterior(replace(RUN, failures=0, node_h=1e5)).mean) < 0.05


def test_a_dear_save_may_come_less_often_than_every_half_hour() -> None:
    decided = decide(replace(RUN, stall_s=120.0, failures=0, node_h=1e5))
    assert decided.interval_s == pytest.approx(12_000.0)
    assert decided.overhead < 0.0101


def test_a_save_takes_as_long_as_it_takes_even_over_the_longest_interval() -> None:
    assert decide(replace(RUN, durable_s=7200.0)).interval_s == pytest.approx(7200.0)


def test_a_save_that_costs_nothing_is_made_every_step() -> None:
    decided = decide(replace(RUN, stall_s=0.0, durable_s=0.0))
    assert decided.every == 1
    assert decided.because.endswith("at one save every 0.12 s = 1 step")


def test_before_a_save_is_measured_the_first_one_comes_soon_and_that_is_said() -> None:
    decided = decide(replace(RUN, stall_s=None, failures=0, node_h=0.0))
    assert decided.interval_s == pytest.approx(UNMEASURED_S)
    assert decided.because.startswith("what a save costs is not measured yet and taken to be a step, 0.12 s, a failure is expected every 38 h")
    assert "none seen yet" in decided.because
    assert decided.because.endswith("so that a save is measured soon")


@settings(max_examples=60, deadline=None)
@given(MEASURED, st.integers(1, 100_000))
def test_what_is_in_use_stays_unless_a_change_is_worth_it(measured: Measured, before: int) -> None:
    decided = decide(measured, before=before)
    assert decided.every in (before, decided.cheapest)
    least = mean_cost(measured, decided.stall_s, decided.cheapest * measured.step_s)
    if decided.every == decided.cheapest:
        in_use = mean_cost(measured, decided.stall_s, before * measured.step_s)
        possible = measured.durable_s <= before * measured.step_s <= max(LONGEST_S, decided.stall_s / SAVING_MAX)
        assert before == decided.cheapest or not possible or least < (1.0 - WORTH_CHANGING) * in_use
    else:
        assert least >= (1.0 - WORTH_CHANGING) * decided.overhead
        assert "stay" in decided.because


def test_a_bound_that_moves_a_little_with_the_time_of_a_step_changes_nothing() -> None:
    measured = Measured(step_s=0.5, nodes=1, stall_s=2.0, node_h=1.0)
    longest = decide(measured)
    assert longest.interval_s == LONGEST_S
    assert decide(replace(measured, step_s=0.55), before=longest.every).every == longest.every
    assert decide(replace(measured, step_s=0.7), before=longest.every).interval_s == pytest.approx(LONGEST_S, abs=1.0)
    durable = replace(measured, stall_s=1e-6, durable_s=100.0)
    shortest = decide(durable).every
    assert decide(replace(durable, durable_s=110.0), before=shortest).every == shortest
    assert decide(replace(durable, durable_s=140.0), before=shortest).interval_s == 140.0


def test_one_more_failure_does_not_change_what_is_in_use_and_ten_do() -> None:
    first = decide(RUN).every
    assert decide(replace(RUN, failures=4), before=first).every == first
    assert decide(replace(RUN, failures=13), before=first).every < first


def test_what_is_as_good_as_never_is_said_so() -> None:
    decided = decide(replace(RUN, failures=0, node_h=1e8))
    assert decided.failure_every_s <= decided.failure_every_high_s < math.inf
    assert "a failure is expected every 100 years or more" in decided.because


def test_what_was_given_is_done_and_compared() -> None:
    decided = decide(RUN, given=100, before=500)
    assert (decided.every, decided.cheapest) == (100, 458)
    assert decided.because.endswith("at one save every 55 s = 458 steps; 100 steps were given, and cost 0.35 % of the time instead of 0.15 %")
    assert "10 s to be durable, so some will wait" in decide(RUN, given=3).because


# The rate.


def test_the_rate_is_that_of_fleets_until_something_is_seen() -> None:
    decided = decide(Measured(step_s=1.0, nodes=100, stall_s=1.0))
    assert decided.failure_every_s == pytest.approx(86_400.0)  # 1 in 100 node-days.


def test_a_bad_machine_is_believed_within_an_hour() -> None:
    decided = decide(Measured(step_s=1.0, nodes=8, stall_s=0.04, failures=12, node_h=8.0))  # Every 5 minutes.
    assert decided.failure_every_s < 2400.0
    assert share_lost(decided.interval_s, 0.04, 1 / 300.0) < 1.6 * share_lost(optimum_s(0.04, 1 / 300.0), 0.04, 1 / 300.0)


def test_a_quiet_machine_is_believed_too() -> None:
    assert decide(Measured(step_s=1.0, nodes=8, stall_s=0.04, node_h=8 * 720.0)).failure_every_s > 10 * 720 * 3600.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 100), st.floats(100.0, 1e5))
def test_more_failures_never_mean_fewer_saves(failures: int, node_h: float) -> None:
    some, more = (decide(Measured(step_s=0.1, nodes=100, stall_s=0.5, failures=seen, node_h=node_h)) for seen in (failures, failures + 5))
    assert more.every <= some.every


# Against failures that are drawn one by one.

Numbers = numpy.typing.NDArray[numpy.float64]


def simulated(gaps: Numbers, interval_s: float, stall_s: float, restart_s: float) -> Numbers:
    """Work saved in each gap between two failures: start again, then one whole interval and save after the other until the next failure."""
    return interval_s * numpy.floor(numpy.maximum(gaps - restart_s, 0.0) / (interval_s + stall_s))


@pytest.mark.parametrize(
    ("stall_s", "between_s", "restart_s"), [(0.04, 300.0, 10.0), (0.04, 11_135.0, 60.0), (1.0, 3600.0, 60.0), (20.0, 11_135.0, 600.0), (30.0, 600.0, 60.0)]
)
def test_no_interval_does_better_than_the_one_decided_when_failures_are_simulated(stall_s: float, between_s: float, restart_s: float) -> None:
    decided = decide(Measured(step_s=0.05, nodes=1, stall_s=stall_s, restart_s=restart_s, prior=Prior(failures=1e6, node_h=1e6 * between_s / 3600.0)))
    gaps = numpy.random.default_rng(42).exponential(between_s, 300_000)
    ours = simulated(gaps, decided.interval_s, stall_s, restart_s)
    assert ours.sum() / gaps.sum() == pytest.approx(decided.goodput, abs=4.0 * float((ours - decided.goodput * gaps).std()) / math.sqrt(len(gaps)) / between_s)
    for factor in (0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0, 4.0):
        gain = simulated(gaps, decided.interval_s * factor, stall_s, restart_s) - ours
        noise = 3.0 * gain.std() / math.sqrt(len(gaps))
        assert gain.mean() <= noise
        if factor in (0.25, 4.0):
            assert gain.mean() < -noise  # The simulation can tell a bad interval.


def test_over_all_that_the_rate_may_be_no_interval_does_better_in_simulation() -> None:
    measured = Measured(step_s=0.5, nodes=2000, failures=1, node_h=4000.0, stall_s=20.0)
    decided = decide(measured)
    draw = numpy.random.default_rng(3)
    rate = posterior(measured)
    between = 1.0 / numpy.maximum(draw.gamma(rate.failures, 1.0 / rate.watched_s, 4000), 1e-9)
    gaps = draw.exponential(between, (200, 4000))
    span = gaps.sum(axis=0)
    ours = simulated(gaps, decided.interval_s, 20.0, 0.0).sum(axis=0) / span
    assert ours.mean() == pytest.approx(decided.goodput, abs=4.0 * ours.std() / math.sqrt(len(ours)))
    for factor in (0.3, 0.6, 0.8, 1.25, 1.6, 3.0):
        gain = simulated(gaps, decided.interval_s * factor, 20.0, 0.0).sum(axis=0) / span - ours
        assert gain.mean() <= 3.0 * gain.std() / math.sqrt(len(gain))
