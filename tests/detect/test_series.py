"""The rings hold what a plain list of readings would say, in a fixed amount of memory, whatever readings come."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.detect.series import FORGET_S, FUTURE_S, GAP_S, GRACE_S, Rings
from holdfast.domain.metric import METRICS, Series
from holdfast.domain.signal import Signal

BEGIN = 1_200_000.0
BYTES_EACH = 1507
GAUGE, COUNTER = "host_load", "host_oom_kills_total"


def fed(values: dict[int, float], metric: str = GAUGE, *, until: int | None = None) -> Rings:
    """One series, with a reading in each of these seconds."""
    rings = Rings()
    for second, value in values.items():
        rings.take("a", [Signal(metric=metric, value=value)], at=BEGIN + second, now=BEGIN + second)
    rings.advance(BEGIN + (max(values) if until is None else until))
    return rings


def columns(rings: Rings, metric: str = GAUGE) -> np.ndarray:
    return rings.layout(metric).columns


def begin_of(window: int, now: int) -> int:
    """The first second a window holds: of a long one, the beginning of its first ten seconds or minute."""
    span = 1 if window <= 60 else 10 if window <= 300 else 60
    return (now - window + 1) // span * span


readings = st.dictionaries(st.integers(0, 900), st.floats(-1000, 1000, width=32), min_size=1, max_size=120)


@given(values=readings, window=st.sampled_from([1, 7, 60, 61, 120, 300, 301, 600, 900, 3600]), more=st.integers(0, 90))
@settings(max_examples=150)
def test_windows_say_what_a_plain_list_of_readings_says(values: dict[int, float], window: int, more: int) -> None:
    values = dict(sorted(values.items()))
    now = max(values) + more
    rings = fed(values, until=now)
    seen = [value for second, value in values.items() if begin_of(window, now) <= second <= now]
    at = columns(rings)
    assert rings.count(at, window)[0] == len(seen)
    if not seen:
        for function in (rings.sum, rings.mean, rings.min, rings.max):
            assert np.isnan(function(at, window)[0])
        return
    assert rings.sum(at, window)[0] == pytest.approx(sum(seen), rel=1e-4, abs=1e-2)
    assert rings.mean(at, window)[0] == pytest.approx(sum(seen) / len(seen), rel=1e-4, abs=1e-2)
    assert rings.min(at, window)[0] == min(seen)
    assert rings.max(at, window)[0] == max(seen)
    if window <= 60:
        assert rings.quantile(at, window, 0.3)[0] == pytest.approx(np.quantile(seen, 0.3), rel=1e-5, abs=1e-4)


messages = st.tuples(
    st.sampled_from("abc"), st.integers(0, 25), st.floats(-40, 10), st.one_of(st.floats(-100, 100, width=32), st.sampled_from([math.nan, math.inf, -math.inf]))
)


@given(told=st.lists(messages, min_size=1, max_size=80), window=st.sampled_from([5, 60, 300, 900]))
@settings(max_examples=200)
def test_whatever_comes_in_is_taken_at_its_time_or_refused_and_counted(told: list[tuple[str, int, float, float]], window: int) -> None:
    rings, now = Rings(), 0
    taken: dict[str, dict[int, float]] = {node: {} for node in "abc"}
    newest = dict.fromkeys("abc", -math.inf)
    refused = {"future": 0, "late": 0, "out_of_order": 0, "not_finite": 0}
    closed = -GRACE_S
    for node, apart, away, value in told:
        now += apart
        at = now + away
        closed = max(closed, (now - GRACE_S) // 10 * 10)
        take(rings, at, now, value=value, node=node)
        slot = min(math.floor(at), now)
        if away > FUTURE_S:
            refused["future"] += 1
        elif slot < closed:
            refused["late"] += 1
        elif at <= newest[node]:
            refused["out_of_order"] += 1
        else:
            newest[node] = at
            if math.isfinite(value):
                taken[node][slot] = value
            else:
                refused["not_finite"] += 1
    assert {reason: getattr(rings.refused, reason) for reason in refused} == refused
    layout = rings.layout(GAUGE)
    for key, largest, number in zip(layout.keys, rings.max(layout.columns, window), rings.count(layout.columns, window), strict=True):
        seen = [value for slot, value in taken[rings.name(GAUGE, int(key)).node].items() if slot >= begin_of(window, now)]
        assert number == len(seen)
        assert (largest == max(seen)) if seen else np.isnan(largest)


@given(steps=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1000), st.booleans()), min_size=1, max_size=60), window=st.sampled_from([30, 60, 300, 900]))
@settings(max_examples=100)
def test_a_counter_grows_by_its_differences_and_begins_again_at_zero(steps: list[tuple[int, int, bool]], window: int) -> None:
    values, grown, second, total = {0: 5.0}, {0: 0.0}, 0, 5.0
    for apart, more, again in steps:
        second += apart
        before, total = total, float(more) if again else total + more
        values[second] = total
        grown[second] = total - before if total >= before else total
    rings = fed(values, COUNTER)
    expected = sum(more for at, more in grown.items() if begin_of(window, second) <= at)
    assert rings.sum(columns(rings, COUNTER), window)[0] == pytest.approx(expected, rel=1e-5)


def test_a_counter_that_was_silent_for_long_begins_anew() -> None:
    rings = fed({0: 0.0, int(GAP_S) + 1: 900.0}, COUNTER)
    assert rings.sum(columns(rings, COUNTER), 600)[0] == 0.0


def test_large_counters_are_exact() -> None:
    rings = fed({second: 9e15 + second for second in range(50)}, COUNTER)
    assert rings.sum(columns(rings, COUNTER), 60)[0] == 49.0


@given(slope=st.floats(-50, 50), window=st.sampled_from([60, 300, 1200]))
@settings(max_examples=30)
def test_a_slope_is_that_of_the_line(slope: float, window: int) -> None:
    rings = fed({second: 1000.0 + slope * second for second in range(0, 1300, 5)})
    assert rings.slope(columns(rings), window)[0] == pytest.approx(slope, rel=1e-2, abs=1e-2)


def test_a_slope_needs_half_the_window() -> None:
    rings = fed({second: float(second) for second in range(100)})
    assert np.isnan(rings.slope(columns(rings), 600)[0])
    assert rings.slope(columns(rings), 180)[0] == pytest.approx(1.0, rel=1e-3)


def test_a_quantile_of_a_long_window_weighs_every_minute_alike() -> None:
    rings = fed({second: 1.0 if second < 3000 else 9.0 for second in range(3300)})
    assert rings.quantile(columns(rings), 3600, 0.5)[0] == pytest.approx(1.0)
    assert rings.quantile(columns(rings), 300, 0.5)[0] == pytest.approx(9.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_what_is_not_finite_is_counted_and_seen_by_nothing_else(bad: float) -> None:
    rings = fed({0: 3.0, 1: bad})
    at = columns(rings)
    assert rings.refused.not_finite == 1
    assert rings.mean(at, 60)[0] == rings.max(at, 60)[0] == rings.min(at, 60)[0] == 3.0
    assert np.isnan(rings.newest(at, 60, BEGIN + 1)[0])
    assert rings.is_not_finite(at, 60, BEGIN + 1)[0] == 1.0
    assert rings.age_s(at, BEGIN + 1)[0] == 0.0, "a series that says NaN is not silent"
    rings.take("a", [Signal(metric=GAUGE, value=4.0)], at=BEGIN + 2, now=BEGIN + 2)
    assert rings.is_not_finite(at, 60, BEGIN + 2)[0] == 0.0
    assert rings.newest(at, 60, BEGIN + 2)[0] == 4.0


def test_a_counter_skips_what_is_not_finite() -> None:
    rings = fed({0: 3.0, 1: math.nan, 2: 5.0}, COUNTER)
    assert rings.sum(columns(rings, COUNTER), 60)[0] == 2.0


def take(rings: Rings, at: float, now: float, value: float = 1.0, metric: str = GAUGE, node: str = "a", of: str = "") -> None:
    rings.take(node, [Signal(metric=metric, value=value, of=of)], at=BEGIN + at, now=BEGIN + now)


def test_readings_out_of_order_are_dropped_and_counted() -> None:
    rings = Rings()
    take(rings, 10, 10)
    take(rings, 9, 11, value=50.0)
    take(rings, 10, 11, value=50.0)
    assert rings.refused.out_of_order == 2
    assert rings.max(columns(rings), 60)[0] == 1.0


def test_readings_from_the_future_are_dropped_and_counted_and_slightly_fast_clocks_are_not() -> None:
    rings = Rings()
    take(rings, FUTURE_S + 1, 0, value=50.0)
    assert rings.refused.future == 1
    take(rings, FUTURE_S - 1, 0, value=2.0)
    assert rings.newest(columns(rings), 60, BEGIN)[0] == rings.max(columns(rings), 1)[0] == 2.0


def test_readings_that_come_long_after_their_time_are_dropped_and_counted() -> None:
    rings = Rings()
    take(rings, 100, 100)
    take(rings, 100 - GRACE_S - 10, 100, node="b")
    assert rings.refused.late == 1
    take(rings, 100 - GRACE_S + 5, 100, node="b")
    assert rings.count(columns(rings), 60).tolist() == [1.0, 1.0]


def test_a_backlog_is_taken_at_the_time_it_was_measured() -> None:
    rings = Rings()
    take(rings, 0, 0)
    for second in range(1, 8):
        take(rings, second, 8, value=float(second))
    assert rings.count(columns(rings), 60)[0] == 8.0
    assert rings.max(columns(rings), 4)[0] == 7.0


def test_a_clock_that_jumps_ahead_forgets_and_one_that_jumps_back_begins_anew() -> None:
    rings = Rings()
    take(rings, 0, 0)
    take(rings, 1e6, 1e6, value=2.0)
    assert rings.count(columns(rings), 3600)[0] == 1.0
    take(rings, 5, 5, value=3.0)
    assert rings.count(columns(rings), 3600)[0] == 1.0
    assert rings.newest(columns(rings), 60, BEGIN + 5)[0] == 3.0
    take(rings, 3, 3, value=4.0)
    assert rings.refused.out_of_order == 1, "a small step back is waited out"


def test_series_come_and_go_and_their_places_are_used_again() -> None:
    rings = Rings()
    for node in "abcdefgh":
        take(rings, 0, 0, node=node, value=7.0)
    size = rings.size_bytes
    for number in range(200):
        rings.forget(f"{number - 1}" if number else "a")
        take(rings, 1, 1, node=f"{number}", value=1.0)
    assert len(rings) == 8
    assert rings.size_bytes == size
    named = {rings.name(GAUGE, int(key)) for key in rings.layout(GAUGE).keys}
    assert named == {Series(metric=GAUGE, node=node) for node in [*"bcdefgh", "199"]}
    where = [rings.name(GAUGE, int(key)).node for key in rings.layout(GAUGE).keys].index("199")
    assert rings.max(columns(rings), 60)[where] == 1.0, "nothing is left of those that had the place before"


def test_a_row_stays_good_when_others_come_and_go() -> None:
    rings = Rings()
    row = rings.row("a", [(GAUGE, ""), (COUNTER, "")])
    rings.insert(row, np.array([1.0, 1.0]), at=BEGIN, now=BEGIN)
    rings.forget("a")
    take(rings, 1, 1, node="b", value=9.0)
    rings.insert(row, np.array([2.0, 2.0]), at=BEGIN + 1, now=BEGIN + 1)
    values = {rings.name(GAUGE, int(key)).node: value for key, value in zip(rings.layout(GAUGE).keys, rings.max(columns(rings), 60), strict=True)}
    assert values == {"a": 2.0, "b": 9.0}


def test_a_series_that_was_silent_for_hours_is_forgotten() -> None:
    rings = Rings()
    take(rings, 0, 0, node="a")
    take(rings, 0, 0, node="b")
    for now in range(0, int(FORGET_S) + 200, 60):
        take(rings, now, now, node="b")
    assert {rings.name(GAUGE, int(key)).node for key in rings.layout(GAUGE).keys} == {"b"}


def test_series_beyond_the_limit_are_refused_and_counted_and_the_others_go_on() -> None:
    rings = Rings(series_max=3)
    for number in range(5):
        take(rings, 0, 0, node="a", metric="disk_free_bytes", of=f"/{number}")
        take(rings, 1, 1, node="a", metric="disk_free_bytes", of=f"/{number}")
    assert len(rings) == 3
    assert rings.refused.too_many == 4
    assert rings.count(columns(rings, "disk_free_bytes"), 60).tolist() == [2.0, 2.0, 2.0]


def test_an_unknown_metric_is_a_gauge() -> None:
    rings = fed({0: 2.0, 1: 1.0}, "user_reward")
    assert rings.mean(columns(rings, "user_reward"), 60)[0] == 1.5


def test_a_small_job_costs_little() -> None:
    rings = Rings()
    for metric in METRICS:
        take(rings, 0, 0, metric=metric)
    assert rings.size_bytes < 2_000_000


def test_ten_thousand_nodes_with_fifty_metrics_stay_below_a_gigabyte() -> None:
    """Measured on a tenth, whose arrays are as those of the whole but for their width."""
    rings = Rings()
    names = [(metric, "") for metric in list(METRICS)[:50]]
    for number in range(1000):
        rings.row(f"node-{number}", names)
    assert len(rings) == 50_000
    assert rings.size_bytes <= 50_000 * BYTES_EACH * (9 / 8) ** 2 * 1.01, "an eighth is spare in each of two places, and a rest"
    assert 500_000 * BYTES_EACH * (9 / 8) ** 2 < 1_000_000_000


@pytest.mark.parametrize("function", ["sum", "mean", "min", "max"])
def test_memory_does_not_grow_with_time(function: str) -> None:
    rings = fed(dict.fromkeys(range(200), 1.0))
    size = rings.size_bytes
    for second in range(200, 5000, 7):
        take(rings, second, second)
    ask: Callable[..., np.ndarray] = getattr(rings, function)
    assert rings.size_bytes == size
    assert ask(columns(rings), 3600).shape == (1,)
