"""Pending, firing, ended: for each subject by itself, with readings that stop, come back, or are no numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import numpy as np
import pytest
from detect.rules_given import BEGIN, Told, rule
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.rulebook import rules_in_force
from holdfast.detect.rules.evaluate import Evaluator
from holdfast.detect.rules.rule import Rule
from holdfast.detect.series import Rings
from holdfast.domain.finding import Severity
from holdfast.domain.metric import METRICS, Scope
from holdfast.domain.signal import Signal

# Wide: the machine is shared. Alone, 10,000 nodes take 160 ms.
LOOK_S_MAX = {1_000: 0.5, 10_000: 1.5}


def load(value: float) -> list[Signal]:
    return [Signal(metric="host_load", value=value)]


def gpu(metric: str, *values: float) -> list[Signal]:
    return [Signal(metric=metric, value=value, of=str(number)) for number, value in enumerate(values)]


def test_a_rule_fires_after_its_for_and_ends_after_its_keep_firing_for() -> None:
    told = Told(rule("{metric: host_load, window: 5s, is: '> 2', for: 10s, keep_firing_for: 20s, severity: critical, summary: '{node}: {value}, {limit}'}"))
    values = {second: 3.0 if 10 <= second < 40 else 1.0 for second in range(90)}
    seen = {second: told.at(second, {"a": load(value)}) for second, value in values.items()}
    started = {second: one.started for second, one in seen.items() if one.started}
    ended = {second: one.ended for second, one in seen.items() if one.ended}
    assert list(started) == [20]
    assert list(ended) == [60]
    (finding,) = started[20]
    assert (finding.kind, finding.node, finding.since, finding.severity) == ("rule:Trouble", "a", BEGIN + 10, Severity.CRITICAL)
    assert finding.because == "a: 3, > 2"
    assert finding.evidence == ("last(host_load, 5s) is 3; the limit is > 2",)
    assert ended[60][0].key == finding.key
    assert ended[60][0].because == "last(host_load, 5s) is 1; the limit is > 2"


def test_one_look_at_which_it_does_not_hold_begins_the_for_anew() -> None:
    told = Told(rule("{metric: host_load, is: '> 2', for: 10s}"))
    started = [second for second in range(40) if told.at(second, {"a": load(1.0 if second == 8 else 3.0)}).started]
    assert started == [19]


def test_what_comes_back_within_keep_firing_for_does_not_end() -> None:
    told = Told(rule("{metric: host_load, is: '> 2', keep_firing_for: 10s}"))
    looks = [told.at(second, {"a": load(1.0 if second % 9 else 3.0)}) for second in range(60)]
    assert sum(len(one.started) for one in looks) == 1
    assert not any(one.ended for one in looks)


def test_a_metric_that_stops_ends_what_it_fired_and_says_so() -> None:
    told = Told(rule("{metric: host_load, is: '> 2', window: 30s}"))
    told.at(0, {"a": load(3.0)})
    assert not told.at(29).ended
    (ended,) = told.at(30).ended
    assert ended.because == "there are no readings any more for last(host_load, 30s)"


def test_the_stop_itself_is_told_by_stale_until_the_series_speaks_or_its_node_leaves() -> None:
    told = Told(rule("{metric: host_load, function: stale, is: '> 1m', summary: '{node} is silent for {value}'}"))
    told.at(0, {"a": load(1.0), "b": load(1.0)})
    assert not told.at(60).started
    assert [finding.because for finding in told.at(61).started] == ["a is silent for 1m 01s", "b is silent for 1m 01s"]
    assert [one.finding.node for one in told.at(70, {"b": load(1.0)}).ended] == ["b"]
    told.rings.forget("a")
    (ended,) = told.at(71).ended
    assert ended.because.startswith("it is no longer measured")
    assert not told.firing


def test_absent_is_told_once_for_the_job() -> None:
    told = Told(rule("{metric: host_load, function: absent, window: 30s, where: {node: 'a*'}, summary: '{job}'}"))
    assert [finding.because for finding in told.at(0).started] == ["resnet"]
    assert told.at(1, {"a1": load(1.0)}).ended
    assert not told.at(30, {"b": load(1.0)}).started
    assert told.at(31, {"b": load(1.0)}).started


@pytest.mark.parametrize("compare", ["> 0", "< 0", ">= 0", "<= 0", "== 0", "!= 0", "between [-1, 1]", "outside [-1, 1]"])
@pytest.mark.parametrize("function", ["last", "mean", "max", "min", "quantile 0.5", "will_reach 0"])
def test_nan_satisfies_no_comparison(compare: str, function: str) -> None:
    told = Told(rule(f"{{metric: loss, function: {function}, is: '{compare if function != 'will_reach 0' else '< 1h'}'}}"))
    for second in range(80):
        told.at(second, {"a": [Signal(metric="loss", value=math.nan, of="0")]})
    assert not told.firing


def test_not_finite_is_satisfied_by_nan_and_infinity_alone() -> None:
    told = Told(rule("{metric: loss, function: not_finite}"))
    told.at(0, {"a": [Signal(metric="loss", value=value, of=str(rank)) for rank, value in enumerate([1.0, math.nan, math.inf, -math.inf, 1e30])]})
    assert told.firing == [("Trouble", "a", "1"), ("Trouble", "a", "2"), ("Trouble", "a", "3")]
    told.at(1, {"a": [Signal(metric="loss", value=1.0, of=str(rank)) for rank in range(5)]})
    assert not told.firing


@pytest.mark.parametrize(
    ("compare", "holds"), [("between [1, 3]", {1.0, 2.0, 3.0}), ("outside [1, 3]", {0.0, 4.0}), ("== 2", {2.0}), ("!= 2", {0.0, 1.0, 3.0, 4.0})]
)
def test_the_ends_belong_to_between_and_not_to_outside(compare: str, holds: set[float]) -> None:
    told = Told(rule(f"{{metric: gpu_processes, is: '{compare}'}}"))
    told.at(0, {"a": gpu("gpu_processes", 0, 1, 2, 3, 4)})
    assert {float(of) for _, _, of in told.firing} == holds


def test_labels_choose_series_exactly_or_by_pattern() -> None:
    told = Told(rule("{metric: gpu_processes, is: '>= 0', where: {node: 'gpu-[12]', gpu: 1}}"))
    told.at(0, {f"gpu-{number}": gpu("gpu_processes", 1, 1) for number in range(4)})
    assert told.firing == [("Trouble", "gpu-1", "1"), ("Trouble", "gpu-2", "1")]


def test_two_metrics_are_divided_where_both_are_there() -> None:
    told = Told(rule("{metric: gpu_power_watts / gpu_power_limit_watts, is: '> 90 %', summary: '{gpu} at {value}'}"))
    looked = told.at(0, {"a": [*gpu("gpu_power_watts", 95, 50, 95, 95), *gpu("gpu_power_limit_watts", 100, 100, 0)]})
    assert [finding.because for finding in looked.started] == ["0 at 95 %"], "nothing is divided by 0, or by what is not there"


def test_a_metric_of_a_gpu_is_divided_by_one_of_its_node() -> None:
    told = Told(rule("{metric: gpu_processes / gpus, is: '> 1'}"))
    told.at(0, {"a": [*gpu("gpu_processes", 8, 2), Signal(metric="gpus", value=4.0)], "b": gpu("gpu_processes", 8, 8)})
    assert told.firing == [("Trouble", "a", "0")]


def test_all_conditions_must_hold_for_the_same_gpu_and_its_node_and_job() -> None:
    told = Told(
        rule("""
        summary: "{node} {gpu}: {value}, {value2} and {value3}"
        all:
          - {metric: gpu_temperature_celsius, is: "> 80"}
          - {metric: host_load, is: "> 1"}
          - {metric: job_generation, is: ">= 1"}
        """)
    )
    hot = gpu("gpu_temperature_celsius", 90, 70)
    assert not told.at(0, {"a": [*hot, *load(2.0)], "b": [*hot, *load(0.5)]}).started
    looked = told.at(1, {"": [Signal(metric="job_generation", value=1.0)]})
    assert [finding.because for finding in looked.started] == ["a 0: 90 °C, 2 and 1"]
    (ended,) = told.at(2, {"a": load(0.1)}).ended
    assert ended.because == "last(host_load, 1m) is 0.1; the limit is > 1"


def test_of_any_the_condition_that_holds_is_told() -> None:
    told = Told(rule("{any: [{metric: host_load, is: '> 9'}, {metric: agent_memory_bytes, is: '> 1GiB'}], summary: '{value}, {limit}'}"))
    looked = told.at(0, {"a": [*load(1.0), Signal(metric="agent_memory_bytes", value=2.0**31)], "b": load(10.0), "c": load(1.0)})
    assert [(finding.node, finding.because) for finding in looked.started] == [("a", "2 GiB, > 1 GiB"), ("b", "10, > 9")]


@pytest.mark.parametrize(
    ("aggregate", "firing"),
    [
        ("each", [("a", "1"), ("b", "0"), ("b", "1")]), ("max by node", [("a", ""), ("b", "")]), ("min by node", [("b", "")]), ("mean by node", [("b", "")]),
        ("sum by job", [("", "")]), ("count by node", []), ("spread by node", []), ("count by job", [("", "")]), ("max", [("", "")]),
    ],
)  # fmt: skip
def test_series_are_taken_together_by_node_or_job(aggregate: str, firing: list[tuple[str, str]]) -> None:
    told = Told(rule(f"{{metric: gpu_processes, aggregate: {aggregate}, is: '> 3'}}"))
    told.at(0, {"a": gpu("gpu_processes", 2, 4), "b": gpu("gpu_processes", 5, 6), "c": gpu("gpu_processes", math.nan)})
    assert [(node, of) for _, node, of in told.firing] == firing


@given(values=st.lists(st.floats(0.1, 100), min_size=1, max_size=12))
def test_each_over_the_median_is_what_it_says(values: list[float]) -> None:
    told = Told(rule("{metric: step_compute_seconds, aggregate: over_median by job, is: '> 1.5'}"))
    told.at(0, {"a": [Signal(metric="step_compute_seconds", value=value, of=str(rank)) for rank, value in enumerate(values)]})
    expected = {str(rank) for rank, value in enumerate(values) if len(values) >= 3 and value / np.median(values) > 1.5}
    assert {of for _, _, of in told.firing} == expected


def test_will_reach_tells_the_time_that_is_left() -> None:
    told = Told(rule("{metric: disk_free_bytes, function: will_reach 0, window: 10m, is: '< 1h', summary: '{disk} in {value}'}"))
    started = []
    for second in range(0, 700, 10):
        free = {"/fills": 3000.0 - second, "/empties": 1000.0 + second, "/still": 5.0}
        started += told.at(second, {"a": [Signal(metric="disk_free_bytes", value=value, of=disk) for disk, value in free.items()]}).started
    assert [finding.because[:13] for finding in started] == ["/fills in 44m"], "45 minutes, less what sparse readings in coarse rows make wrong"


def test_a_node_that_comes_does_not_disturb_what_is_pending_or_firing() -> None:
    told = Told(rule("{metric: host_load, is: '> 2', for: 10s}"))
    for second in range(30):
        nodes = [f"n{number}" for number in range(20 + second // 3, 0, -1)]
        looked = told.at(second, {node: load(3.0) for node in nodes})
        assert not looked.ended
        assert len(looked.started) == (20 if second == 10 else 1 if second > 10 and (second - 10) % 3 == 0 and second >= 13 else 0)


@given(holds=st.lists(st.booleans(), min_size=1, max_size=60), for_s=st.integers(0, 8), keep_s=st.integers(0, 8))
def test_every_start_has_at_most_one_end_and_every_end_one_start(holds: list[bool], for_s: int, keep_s: int) -> None:
    told = Told(rule(f"{{metric: host_load, is: '> 2', for: {for_s}s, keep_firing_for: {keep_s}s}}"))
    stands, since, last = False, None, -1
    for second, one in enumerate(holds):
        looked = told.at(second, {"a": load(3.0 if one else 1.0)})
        since = (second if since is None else since) if one else None
        last = second if one else last
        expected = (since is not None and second - since >= for_s) or (stands and (one or second - (last + 1) < keep_s))
        assert (len(looked.started), len(looked.ended)) == (int(expected and not stands), int(stands and not expected))
        stands = expected


def at_scale(rules: Iterable[Rule], nodes: int) -> Evaluator:
    rules = list(rules)
    metrics = [metric for metric in dict.fromkeys(name for one in rules for name in one.metrics) if METRICS[metric].scope is not Scope.JOB][:50]
    names = [(metric, "" if METRICS[metric].scope is Scope.NODE else "0") for metric in metrics]
    rings = Rings()
    for number in range(nodes):
        rings.insert(rings.row(f"node-{number}", names), np.zeros(len(names)), at=BEGIN, now=BEGIN)
    return Evaluator(rules, rings)


@pytest.mark.parametrize("nodes", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_pack_is_looked_through_for_all_nodes_in_a_moment(nodes: int) -> None:
    evaluator = at_scale(rules_in_force().rules, nodes)
    evaluator.look(BEGIN + 1)
    took = []
    for second in range(2, 7):
        began = time.perf_counter()
        evaluator.look(BEGIN + second)
        took.append(time.perf_counter() - began)
    assert min(took) < LOOK_S_MAX[nodes], f"{min(took):.3f} s"
