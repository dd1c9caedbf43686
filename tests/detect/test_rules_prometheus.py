"""Rules for Prometheus: what PromQL can say it says alike, and what it cannot is told by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from detect.rules_given import promtool, rule

from holdfast.detect.rules.cases import Case, read_cases, run_case
from holdfast.detect.rules.prometheus import exported, expression, promtool_tests

EVERYTHING = """
tests:
  - {name: equal, rule: Trouble, every: 10s, series: {"gpu_processes{node=a, gpu=0}": 1x9 2x9 1x9}, firing: {1m: nothing, 2m30s: node=a gpu=0, 4m: nothing}}
"""
SHAPES = {
    "{metric: gpu_processes, is: '== 2', for: 30s}": "last_over_time(holdfast_gpu_processes[1m]) == 2",
    "{metric: gpu_processes, is: 'between [2, 3]', window: 30s, function: min}": "(min_over_time(holdfast_gpu_processes[30s]) >= 2) <= 3",
    "{metric: gpu_processes, is: 'outside [0, 1]'}": "(last_over_time(holdfast_gpu_processes[1m]) < 0) or (last_over_time(holdfast_gpu_processes[1m]) > 1)",
    "{metric: gpu_processes, is: '!= 1', where: {node: 'a*', gpu: 0}}": 'last_over_time(holdfast_gpu_processes{gpu="0", node=~"a.*"}[1m]) != 1',
    "{metric: gpu_processes, function: max, window: 5m, minus: {function: min, window: 1m}, is: '> 0'}": (
        "(max_over_time(holdfast_gpu_processes[5m]) - on (holdfast_job, node, gpu) min_over_time(holdfast_gpu_processes[1m])) > 0"
    ),
}


def case(text: str, *rules: str) -> tuple[Case, ...]:
    cases, problems = read_cases(text, "tests.yaml", rules or ("Trouble",))
    assert not problems, problems
    return cases


@pytest.mark.parametrize(("text", "said"), SHAPES.items())
def test_a_rule_is_said_in_promql(text: str, said: str) -> None:
    assert expression(rule(text)) == said


@pytest.mark.parametrize(
    ("text", "values", "firing"),
    [
        ("{metric: gpu_processes, is: 'between [2, 3]'}", "1x9 2x9 3x9 4x9", "{1m: nothing, 2m30s: node=a gpu=0, 4m: node=a gpu=0, 6m: nothing}"),
        ("{metric: gpu_processes, is: 'outside [2, 3]'}", "1x9 2x9 3x9 4x9", "{1m: node=a gpu=0, 2m30s: nothing, 4m: nothing, 6m: node=a gpu=0}"),
        ("{metric: gpu_processes, is: '!= 2', where: {node: '[ab]', gpu: '?'}}", "2x9 3x9", "{1m: nothing, 3m: node=a gpu=0}"),
        ("{metric: gpu_processes, is: '> 1', where: {node: '[!a]'}}", "2x9", "{1m: nothing}"),
        ("{metric: gpu_processes, is: '> 1', where: {node: 'a.b'}}", "2x9", "{1m: nothing}"),
        ("{metric: gpu_processes, function: not_finite}", "2x9 NaN NaN NaN 2x3 Inf Inf 2x9",
         "{1m: nothing, 2m: node=a gpu=0, 2m30s: nothing, 2m50s: node=a gpu=0, 4m: nothing}"),
        ("{metric: gpu_processes, function: absent, window: 1m}", "_x9 2x9 _x30", "{1m: job, 2m: nothing, 3m: nothing, 6m: job}"),
        ("{metric: gpu_processes, function: stale, is: '>= 1m'}", "2x9 _x30 2x5", "{1m: nothing, 4m: node=a gpu=0, 7m: nothing}"),
        ("{metric: gpu_processes, aggregate: spread by node, is: '> 1'}", "2x9", "{1m: nothing}"),
        ("{metric: gpu_processes, aggregate: count by job, is: '> 0'}", "2x9", "{1m: job}"),
        ("{metric: gpu_processes, aggregate: sum by node, is: '> 1', labels: {team: x}, route: night}", "2x9", "{1m: node=a}"),
        ("{metric: gpu_processes, function: quantile 0.9, window: 5m, is: '> 5'}", "2x30 9x60", "{5m: nothing, 14m: node=a gpu=0}"),
        ("{metric: gpu_processes, function: will_reach 0, window: 10m, is: '< 5m'}", "100-1x80", "{4m: nothing, 13m: node=a gpu=0}"),
        ("{metric: gpu_processes, is: '> 1', for: 1m, keep_firing_for: 2m}", "2x9 0x30", "{50s: nothing, 1m30s: node=a gpu=0, 3m: node=a gpu=0, 5m: nothing}"),
    ],
)  # fmt: skip
def test_promtool_and_we_see_the_same(tmp_path: Path, text: str, values: str, firing: str) -> None:
    one = rule(text)
    (test,) = case(f"tests:\n  - name: x\n    rule: Trouble\n    series: {{'gpu_processes{{node=a, gpu=0}}': {values}}}\n    firing: {firing}\n")
    assert not run_case(test, one).failures
    (tmp_path / "rules.yaml").write_text(exported([one]).text)
    (tmp_path / "tests.yaml").write_text(promtool_tests([test], [one], "rules.yaml"))
    promtool("check", "rules", "rules.yaml", directory=tmp_path)
    promtool("test", "rules", "tests.yaml", directory=tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{metric: gpu_processes, function: count, is: '> 5'}", "count depends on how often readings are taken"),
        ("{metric: gpu_processes, function: sum, is: '> 5'}", "sum depends on how often readings are taken"),
        ("{metric: gpu_processes, window: 10s, is: '> 5'}", "its window of 10s holds less than two readings when Prometheus asks every 15s"),
        ("{metric: gpu_processes, function: stale, is: '< 5s'}", "of stale PromQL can only say that it is above a limit"),
        ("{metric: gpu_processes, function: not_finite, is: '== 0'}", "of not_finite PromQL can only say that it is so"),
        ("{metric: gpu_processes, function: not_finite, aggregate: sum by job, is: '> 2'}", "not_finite cannot be aggregated in PromQL"),
    ],
)
def test_what_promql_cannot_say_is_left_out_and_told_of_with_its_reason(text: str, reason: str) -> None:
    made = exported([rule(text), rule("{name: Good, metric: gpus, is: '> 1'}")])
    assert made.rules == ("Good",)
    assert made.left_out["Trouble"].startswith(reason)
    assert f"# Left out: Trouble: {reason}" in made.text
    assert [one["alert"] for group in yaml.safe_load(made.text)["groups"] for one in group["rules"]] == ["Good"]


def test_an_alert_carries_what_people_read() -> None:
    one = rule("""
    metric: host_memory_available_bytes / host_memory_bytes
    is: "< 5 %"
    severity: critical
    route: night
    labels: {team: infra}
    summary: "{job} {node}: {value} {limit} {{x}}"
    why: Because.
    doc: https://example.org/memory
    """)
    (alert,) = yaml.safe_load(exported([one]).text)["groups"][0]["rules"]
    assert alert["labels"] == {"severity": "critical", "route": "night", "team": "infra"}
    assert alert["annotations"]["summary"] == "{{ $labels.holdfast_job }} {{ $labels.node }}: {{ $value | humanizePercentage }} < 5 % {x}"
    assert (alert["annotations"]["description"], alert["annotations"]["runbook_url"]) == ("Because.", "https://example.org/memory")


def test_prometheus_own_job_label_is_left_alone() -> None:
    said = exported([rule("{metric: gpus, aggregate: sum by job, is: '> 1', summary: '{job}'}")]).text
    assert "by (holdfast_job)" in said
    assert "$labels.job" not in said


@pytest.mark.parametrize(
    ("test", "line", "said"),
    [
        ("{name: x, rule: Troubel, series: {}, firing: {1m: nothing}}", 2, "there is no rule 'Troubel'; did you mean 'Trouble'?"),
        ("{name: x, rule: Trouble, series: {}, firing: {}}", 2, "it needs at least one time"),
        ("{name: x, rule: Trouble, series: {}}", 2, "the test has no `firing`"),
        ("{name: x, rule: Trouble, series: {}, firing: {1m: nothing}, evry: 3s}", 2, "unknown key 'evry'; did you mean 'every'?"),
        ("{name: x, rule: Trouble, series: {gpsu: 1}, firing: {1m: nothing}}", 2, "there is no metric 'gpsu'; did you mean 'gpus'?"),
        ("{name: x, rule: Trouble, series: {'gpus{gpu=1}': 1}, firing: {1m: nothing}}", 2, "gpus has the labels node; seen gpu"),
        ("{name: x, rule: Trouble, series: {'gpus{node=a}': 1..3}, firing: {1m: nothing}}", 2, "expected values such as 5x3, 1+2x3, _x3 or NaN; seen '1..3'"),
        ("{name: x, rule: Trouble, series: {'gpus{node=a}': _x99999999}, firing: {1m: nothing}}", 2, "'_x99999999' is more than 100,000 values"),
        ("{name: x, rule: Trouble, series: {}, firing: {15s: nothing}}", 2, "15s is no multiple of the 10s between two looks"),
        ("{name: x, rule: Trouble, series: {}, firing: {soon: nothing}}", 2, "'soon' is not a duration"),
        ("text", 2, "a test is a mapping; seen text"),
    ],
)  # fmt: skip
def test_a_test_that_cannot_be_read_is_told_of(test: str, line: int, said: str) -> None:
    _, problems = read_cases(f"tests:\n  - {test}\n", "tests.yaml", ["Trouble"])
    assert [problem.line for problem in problems] == [line]
    assert said in str(problems[0])


def test_a_test_that_fails_says_what_was_expected_and_what_was_seen() -> None:
    (test,) = case(EVERYTHING)
    failures = run_case(test, rule("{metric: gpu_processes, is: '== 1'}")).failures
    assert failures[0] == "at 1m: expected nothing; seen gpu=0 node=a"
