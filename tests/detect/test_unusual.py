from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.detect.unusual import NOTABLE, Found, Judged, Unusual

Floats = NDArray[np.float64]
ROWS = 4000
EVERY_S = 300.0
DAY_ROWS = 288
WILD = (np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 1e30)


def noise(seed: int = 1, rows: int = ROWS) -> Floats:
    return np.random.default_rng(seed).normal(size=rows)


def daily(seed: int = 1, rows: int = ROWS) -> Floats:
    """Low by night and high by day, with a little noise."""
    return np.where(np.arange(rows) % DAY_ROWS > 150, 80.0, 20.0) + noise(seed, rows)


def judge(values: Floats, at: Floats | None = None) -> Judged:
    return Unusual(1).look_at_rows(EVERY_S * np.arange(len(values)) if at is None else at, values[:, None])


def rows_found(values: Floats) -> list[int]:
    return [one.row for one in judge(values).found]


def mixed(seed: int, rows: int) -> Floats:
    """A series of some kind, with holes, spikes, shifts and things that are no numbers."""
    draw = np.random.default_rng(seed)
    kinds = [draw.normal(size=rows), draw.normal(size=rows).cumsum(), daily(seed, rows), draw.poisson(2, rows), draw.lognormal(size=rows), np.full(rows, 7.0)]
    values = np.array(kinds[seed % len(kinds)], dtype=np.float64) * 10.0 ** draw.integers(-6, 9)
    values[draw.random(rows) < 0.01] *= 30
    values[draw.integers(rows) :] += draw.normal() * 10
    strange = draw.random(rows) < 0.01
    values[strange] = draw.choice(WILD, int(strange.sum()))
    return values


# What it finds.


def test_a_spike_is_found_once_on_its_row() -> None:
    values = noise()
    values[3000] += 15
    assert rows_found(values) == [3000]


def test_a_spike_downwards_is_found_too() -> None:
    values = 50 + noise()
    values[3000] -= 15
    assert rows_found(values) == [3000]


def test_a_level_shift_is_found_once_and_soon() -> None:
    values = noise()
    values[2500:] += 6
    (row,) = rows_found(values)
    assert 2500 <= row < 2510


def test_a_scatter_that_grows_is_found() -> None:
    values = noise()
    values[2500:] *= 6
    found = rows_found(values)
    assert found
    assert 2500 <= found[0] < 2530


def test_a_jump_that_never_leaves_the_usual_range_is_found() -> None:
    values = 10 * np.sin(np.arange(ROWS) / 700)  # Slow, and too long for a period.
    values[3100:3103] *= -1
    assert [row for row in rows_found(values) if row > 600][:1] == [3100]


def test_a_day_that_does_not_come_is_found() -> None:
    values = daily()
    missing = slice(10 * DAY_ROWS + 100, 11 * DAY_ROWS)
    values[missing] = 20 + noise(2)[missing]
    found = [row for row in rows_found(values) if row > 1000]
    assert len(found) == 1
    assert 0 <= found[0] - (10 * DAY_ROWS + 151) < 40


def test_a_flat_line_in_the_middle_of_a_season_is_found() -> None:
    values = daily()
    values[10 * DAY_ROWS + 160 : 10 * DAY_ROWS + 250] = 50.0
    found = [row for row in rows_found(values) if row > 1000]
    assert found
    assert 0 <= found[0] - (10 * DAY_ROWS + 160) < 60


def test_a_period_of_its_own_is_learned_and_missed_when_it_stops() -> None:
    values = np.where(np.arange(ROWS) % 90 < 20, 5.0, 1.0) + 0.1 * noise()
    values[3060:3300] = 1 + 0.1 * noise(2)[3060:3300]
    late = [row for row in rows_found(values) if row > 1500]
    assert late
    assert 3060 <= late[0] < 3100


# What it leaves alone.


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_finding(seed: int) -> None:
    assert rows_found(noise(seed)) == []


@pytest.mark.parametrize("value", [0.0, 45.0, -1e-12, 1e12, 0.1])
def test_a_constant_is_silent_and_scores_low(value: float) -> None:
    judged = judge(np.full(ROWS, value))
    assert judged.found == ()
    assert judged.scores.max() < NOTABLE


def test_a_season_is_not_reported_once_it_was_seen() -> None:
    assert [row for row in rows_found(daily()) if row > 3 * DAY_ROWS] == []


def test_a_perfect_square_wave_is_not_notable_once_it_was_seen() -> None:
    judged = judge(np.where(np.arange(ROWS) % DAY_ROWS > 150, 80.0, 20.0))
    assert judged.scores[3 * DAY_ROWS :].max() < NOTABLE


def test_a_trend_is_not_reported() -> None:
    assert [row for row in rows_found(0.05 * np.arange(ROWS) + noise()) if row > 1000] == []


def test_a_weekend_is_not_reported_once_two_were_seen() -> None:
    hours = np.arange(24 * 7 * 8)
    values = np.where(hours // 24 % 7 >= 5, 20.0, 60.0) + 10 * np.sin(hours * 2 * np.pi / 24) + noise(1, len(hours))
    found = [one.row for one in judge(values, 3600.0 * hours).found]
    assert [row for row in found if row > 24 * 7 * 3] == []


def test_spikes_that_always_came_are_not_reported() -> None:
    values = noise()
    values[::60] += 20
    assert [row for row in rows_found(values) if row > 1000] == []


def test_one_wild_reading_does_not_blind_it() -> None:
    values = noise()
    values[1000] = 1e30
    values[3000:] += 8
    late = [row for row in rows_found(values) if row > 1500]
    assert len(late) == 1
    assert 3000 <= late[0] < 3040


# Bad input.


def test_a_value_that_is_no_number_is_counted_scores_nothing_and_teaches_nothing() -> None:
    values = noise()
    holes = np.insert(values, [1000, 1000, 2000], [np.nan, np.inf, -np.inf])
    detector = Unusual(1)
    scores = detector.look_at_rows(EVERY_S * np.arange(len(holes)), holes[:, None]).scores[:, 0]
    assert detector.missing.tolist() == [3]
    assert scores[[1000, 1001, 2002]].tolist() == [0, 0, 0]
    assert np.isfinite(scores).all()


def test_a_series_without_any_number_is_silent() -> None:
    judged = judge(np.full(ROWS, np.nan))
    assert judged.found == ()
    assert not judged.scores.any()


def test_a_series_that_begins_late_is_judged_from_then_on() -> None:
    values = np.full(ROWS, np.nan)
    values[1500:] = noise(rows=ROWS - 1500)
    values[3500] += 15
    assert rows_found(values) == [3500]


@pytest.mark.parametrize("at", [np.nan, np.inf, -1e18, 1e18])
def test_times_that_make_no_sense_do_no_harm(at: float) -> None:
    values = noise()
    values[3000] += 15
    times = EVERY_S * np.arange(ROWS)
    times[::3] = at
    assert [one.row for one in judge(values, times).found] == [3000]


def test_times_out_of_order_do_no_harm() -> None:
    values = noise()
    values[3000] += 15
    times = np.random.default_rng(0).permutation(EVERY_S * np.arange(ROWS))
    assert [one.row for one in judge(values, times).found] == [3000]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_scores_are_between_0_and_1_whatever_comes(seed: int) -> None:
    with np.errstate(all="raise", under="ignore"):
        scores = judge(mixed(seed, 700)).scores
    assert ((scores >= 0) & (scores <= 1)).all()


# Streaming.


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 1500))
def test_scores_of_a_file_that_is_cut_are_the_first_scores_of_the_whole(seed: int, cut: int) -> None:
    values = mixed(seed, 1500)
    whole, first = judge(values), judge(values[:cut])
    assert np.array_equal(first.scores, whole.scores[:cut])
    assert first.found == tuple(one for one in whole.found if one.row < cut)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(1, 1200), max_size=6))
def test_rows_at_once_give_what_rows_one_by_one_give(seed: int, cuts: list[int]) -> None:
    values, at = mixed(seed, 1200)[:, None], EVERY_S * np.arange(1200)
    whole = Unusual(1).look_at_rows(at, values)
    edges = [0, *sorted(cuts), 1200]
    pieces = Unusual(1)
    assert np.array_equal(np.concatenate([pieces.look_at_rows(at[a:b], values[a:b]).scores for a, b in pairwise(edges)]), whole.scores)
    single = Unusual(1)
    assert np.array_equal([single.look(at[row], values[row]).scores for row in range(1200)], whole.scores)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 9))
def test_a_batch_gives_what_each_series_gives_alone(seed: int, n: int) -> None:
    values = np.stack([mixed(seed + number, 1500) for number in range(n)], axis=1)
    at = EVERY_S * np.arange(1500)[:, None] + 1000.0 * np.arange(n)
    batch = Unusual(n).look_at_rows(at, values)
    for number in range(n):
        alone = Unusual(1).look_at_rows(at[:, number], values[:, number : number + 1])
        assert np.array_equal(alone.scores[:, 0], batch.scores[:, number])
        assert [(one.row, one.finding) for one in alone.found] == [(one.row, one.finding) for one in batch.found if one.series == number]


# What it says.


def test_a_finding_quotes_what_was_seen_and_what_was_expected() -> None:
    values = 50 + noise()
    values[3000] = 99.5
    detector = Unusual(1, names=["gpu 3, temperature"])
    (found,) = detector.look_at_rows(EVERY_S * np.arange(ROWS), values[:, None]).found
    assert isinstance(found, Found)
    finding = found.finding
    assert finding.kind == "unusual_value"
    assert finding.since == 3000 * EVERY_S
    assert finding.because.startswith("gpu 3, temperature: 99.5 was seen, 47.")
    assert "times as" in finding.because
    assert finding.evidence


def test_of_the_rows_of_one_episode_only_the_first_and_a_far_more_unusual_one_are_notable() -> None:
    values = noise()
    values[3000:3020] += 15
    scores = judge(values).scores[:, 0]
    notable = 3000 + np.flatnonzero(scores[3000:3200] >= NOTABLE)
    assert notable[0] == 3000
    assert len(notable) == 1 or (len(notable) == 2 and scores[notable[1]] > scores[3000] + 0.2)
