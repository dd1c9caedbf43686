"""The numbers before an end speak for failures that leave no line."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.numbers import before_the_end, of_losses
from holdfast.diagnose.taxonomy import CLASSES
from holdfast.domain.log_event import LogProgress


def losses(*values: float) -> list[LogProgress]:
    return [LogProgress(path="a.log", line=number, step=number, loss=value) for number, value in enumerate(values)]


def test_memory_near_its_limit_speaks_for_a_lack_of_it() -> None:
    near = before_the_end({"cgroup_memory_bytes": [(0, 1e9), (9, 7.9e9)], "cgroup_memory_limit_bytes": [(0, 8e9)]})
    assert [one.cause for one in near] == ["host_oom"]
    assert not before_the_end({"cgroup_memory_bytes": [(0, 1e9), (9, 5e9)], "cgroup_memory_limit_bytes": [(0, 8e9)]})


def test_counters_speak_when_they_rise_and_not_for_what_they_were() -> None:
    assert [one.cause for one in before_the_end({"gpu_ecc_uncorrected_total 3": [(0, 1), (9, 2)]})] == ["gpu_ecc"]
    assert not before_the_end({"gpu_ecc_uncorrected_total 3": [(0, 7), (9, 7)]})


def test_a_disk_is_full_by_its_own_size() -> None:
    full = {"disk_free_bytes /data": [(0, 5e9), (9, 1e6)], "disk_size_bytes /data": [(0, 1e12)]}
    series = {**full, "disk_free_bytes /": [(0, 5e10)], "disk_size_bytes /": [(0, 1e11)]}
    assert ["/data" in one.because for one in before_the_end(series)] == [True]


def test_a_loss_that_is_gone_or_far_above() -> None:
    assert [one.cause for one in of_losses(losses(3.0, 2.0, math.nan))] == ["numeric_nan"]
    assert [one.cause for one in of_losses(losses(*[2.0] * 10, 50.0, 80.0, 90.0, 100.0, 120.0))] == ["loss_divergence"]
    assert not of_losses(losses(*[2.0] * 10, 2.5))
    assert not of_losses([])


@given(st.dictionaries(st.sampled_from(["cgroup_memory_bytes", "disk_free_bytes /", "gpu_temperature_celsius 0", "loss", "no_such_metric"]),
                       st.lists(st.tuples(st.floats(0, 1e6), st.floats(allow_nan=True, allow_infinity=True)), max_size=5)))  # fmt: skip
def test_any_numbers_give_classes_that_exist(series: dict[str, list[tuple[float, float]]]) -> None:
    assert all(one.cause in CLASSES and math.isfinite(one.log_odds) for one in before_the_end(series))
