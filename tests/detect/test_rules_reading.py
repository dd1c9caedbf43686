"""Whatever is wrong with a rule is said with its file, its line, what was seen and what is expected."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.detect.rules.reading import combined, read_rules
from holdfast.detect.rules.units import BadNumber, duration_s, quantity, short_duration, written

GOOD = "name: Hot\nmetric: gpu_temperature_celsius\nis: '> 90'\nsummary: '{node}: {value}'"


def told(rule: str) -> list[str]:
    """The problems of a file with this one rule, which begins at line 2."""
    text = "rules:\n  - " + textwrap.dedent(rule).strip().replace("\n", "\n    ") + "\n"
    return [str(problem) for problem in read_rules(text, "own.yaml").problems]


def changed(**fields: str) -> str:
    lines = dict(line.split(": ", 1) for line in GOOD.split("\n"))
    lines |= fields
    return "\n".join(f"{key}: {value}" for key, value in lines.items() if value)


def test_a_good_rule_has_no_problem() -> None:
    assert not told(GOOD)


@pytest.mark.parametrize(
    ("rule", "line", "said"),
    [
        (changed(metric="gpu_temprature_celsius"), 3, "there is no metric 'gpu_temprature_celsius'; did you mean 'gpu_temperature_celsius'?"),
        (changed(metric="user_Bad-Name"), 3, "there is no metric 'user_Bad-Name'"),
        (changed(widow="5m"), 6, "unknown key 'widow'; did you mean 'window'?"),
        (changed(window="200ms"), 6, "the window is 200ms, and a reading is taken every 1s"),
        (changed(metric="gpu_xid_total", function="rate", window="1s"), 7, "the window is 1s, and a reading is taken every 1s, and rate needs two"),
        (changed(window="2h"), 6, "the window is 2h, and 1h of readings are kept"),
        (changed(window="5 minutes"), 6, "'5 minutes' is not a duration such as 30s, 5m or 1h"),
        (changed(**{"for": "7h"}), 6, "7h is longer than 6h, after which a silent series is forgotten"),
        (changed(**{"is": ""}), 2, 'the comparison is missing: add `is:`, such as `is: "> 5"`'),
        (changed(**{"is": "90"}), 4, "expected a comparison such as '> 5', '<= 90 %' or 'between [1, 3]'; seen '90'"),
        (changed(**{"is": "'> 4GiB'"}), 4, "'4GiB' is a size, and the value is in celsius; expected a temperature such as 85 °C"),
        (changed(**{"is": "'> 9 parsec'"}), 4, "'9 parsec' has the unknown unit 'parsec'"),
        (changed(**{"is": "between [3, 1]"}), 4, "the lower end comes first"),
        (changed(**{"is": "between 1 and 3"}), 4, "expected two ends such as 'between [1, 3]'"),
        (changed(function="avg"), 6, "unknown function 'avg'"),
        (changed(function="menn"), 6, "unknown function 'menn'; did you mean 'mean'?"),
        (changed(function="quantile"), 6, "quantile needs a number, such as `quantile 0.5`"),
        (changed(function="quantile 7"), 6, "a quantile is from 0 to 1; seen 7"),
        (changed(function="mean 7"), 6, "mean takes no argument; seen '7'"),
        (changed(function="rate"), 6, "gpu_temperature_celsius is no counter, so it has no rate"),
        (changed(metric="gpu_xid_total", function="mean"), 6, "gpu_xid_total is a counter, which only grows: use `function: increase`"),
        (changed(severity="urgent"), 6, "unknown severity 'urgent'; expected one of info, warning, critical"),
        (changed(severity="criticl"), 6, "unknown severity 'criticl'; did you mean 'critical'?"),
        (changed(name="gpu-hot"), 2, "a name is CamelCase, such as GpuHot; seen 'gpu-hot'"),
        (changed(summary="'{nod}: hot'"), 5, "the summary names {nod}, which this rule has not; did you mean 'node'?"),
        (changed(summary="'{value:.2f}'"), 5, "{value} is written with its unit already"),
        (changed(summary="'{value'"), 5, "the summary cannot be read"),
        (changed(summary=""), 2, "the rule has no `summary`"),
        (changed(where="{rank: 3}"), 6, "gpu_temperature_celsius has no label 'rank'; it has node and gpu"),
        (changed(where="gpu"), 6, "`where` is a mapping such as {node: 'gpu-*'}; seen text"),
        (changed(labels="{severity: x}"), 6, "'severity' cannot be a label"),
        (changed(aggregate="median"), 6, "unknown aggregate 'median'"),
        (changed(aggregate="max by rack"), 6, "expected `max by job` or `max by node`; seen 'max by rack'"),
        (changed(disabled="perhaps"), 6, "expected true or false; seen 'perhaps'"),
        (changed(metric="gpu_power_watts - gpu_temperature_celsius"), 3, "gpu_power_watts is in watts and gpu_temperature_celsius in celsius"),
        (changed(metric="host_load / gpu_temperature_celsius"), 3, "host_load is of each node and gpu_temperature_celsius of each gpu"),
        (changed(metric="gpu_power_watts / gpu_power_limit_watts", function="stale"), 3, "stale is of one metric, and cannot be divided or subtracted"),
        (changed(divided_by="{widow: 5m}"), 6, "unknown key 'widow'; did you mean 'window'?"),
        (changed(metric="", **{"is": ""}), 2, "a rule has exactly one of `metric`, `all` and `any`; seen none"),
        ("name: Two\nsummary: x\nall: []", 4, "`all` is a list of conditions"),
        ("name: Two\nsummary: x\nall:\n  - metric: host_load\n    is: '> 1'\n  - metric: gpus", 7, "the comparison is missing"),
        ("name: Two\nsummary: x\nall:\n  - {metric: host_load, is: '> 1'}\n  - {metric: gpu_power_watts, is: '> 1'}", 2, "put the finest first"),
        ("name: Two\nsummary: x\nany:\n  - {metric: host_load, is: '> 1'}\n  - {metric: loss, is: '> 1'}", 2, "conditions of `any` must be of the same"),
        ("just text", 2, "a rule is a mapping with `name`"),
        ("metric: gpus\nis: '> 1'", 2, "the rule has no `name`"),
        ("name: Twice\nname: Again\nmetric: gpus\nis: '> 1'\nsummary: x", 3, "the key 'name' is written twice"),
    ],
)  # fmt: skip
def test_a_problem_is_told_with_its_line_and_what_to_write_instead(rule: str, line: int, said: str) -> None:
    problems = told(rule)
    assert any(problem.startswith(f"own.yaml:{line}: ") and said in problem for problem in problems), "\n".join(problems)


def test_all_problems_are_told_at_once_and_good_rules_are_read() -> None:
    text = "rules:\n" + "".join(
        f"  - {{name: {name}, metric: {metric}, is: '> 1', summary: x}}\n" for name, metric in [("A", "gpsu"), ("B", "gpus"), ("C", "lost")]
    )
    read = read_rules(text, "own.yaml")
    assert [(problem.line, problem.rule) for problem in read.problems] == [(2, "A"), (4, "C")]
    assert [rule.name for rule in read.rules] == ["B"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "own.yaml:1: the file is empty"),
        ("rules: [", "own.yaml:1: not YAML"),
        ("- a", "expected a mapping with `rules:`"),
        ("rules:\n  - name: Hot\n    is: > 90\n", "Put a comparison that begins with > or ! in quotes."),
        ("rules:\n  - name: Hot\n    metric: gpus\n    summary: x\n    is: !90\n", "expected a comparison"),
        ("rules:\n" + 2 * "  - {name: A, metric: gpus, is: '> 1', summary: x}\n", "own.yaml:3: A: the name is used twice; first at line 2"),
        ("rules: []\nrule: 3", "unknown key 'rule'; did you mean 'rules'?"),
        ("\x00", "not YAML"),
        ("rules: &a [*a]", "own.yaml:1: an alias (*a) is not understood"),
        ("rules: " + 3000 * "[", "own.yaml:1: "),
        ("rules:\n  - {name: A, metric: gpus, is: '> 1e999', summary: x}\n", "'1e999' is too large"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_file_of_rules_is_told_of(text: str, said: str) -> None:
    assert any(said in str(problem) for problem in read_rules(text, "own.yaml").problems), read_rules(text, "own.yaml").problems


@given(st.text(max_size=60))
def test_no_text_makes_it_fall_over(text: str) -> None:
    read_rules(text, "own.yaml")
    read_rules(f"rules:\n  - name: A\n    metric: gpus\n    is: {text}\n", "own.yaml")


def test_a_rule_of_ones_own_replaces_the_shipped_one_and_may_switch_one_off() -> None:
    shipped = read_rules("rules:\n  - {name: A, metric: gpus, is: '> 1', summary: x}\n  - {name: B, metric: gpus, is: '> 1', summary: x}\n", "pack.yaml")
    own = ["{name: A, metric: gpus, is: '> 7', summary: x}", "{name: B, disabled: true}", "{name: C, metric: loss, is: '> 1', summary: x}"]
    given = read_rules("rules:\n" + "".join(f"  - {one}\n" for one in own), "own.yaml")
    found = combined([shipped], [given])
    assert [(rule.name, rule.conditions[0].low) for rule in found.rules] == [("A", 7.0), ("C", 1.0)]
    assert (found.replaced, found.disabled, found.problems) == (("A",), ("B",), ())


def test_switching_off_what_there_is_not_is_a_problem_and_so_is_a_name_in_two_files() -> None:
    one = read_rules("rules:\n  - {name: Aa, disabled: true}\n  - {name: B, metric: gpus, is: '> 1', summary: x}\n", "one.yaml")
    two = read_rules("rules:\n  - {name: B, metric: gpus, is: '> 1', summary: x}\n", "two.yaml")
    said = [str(problem) for problem in combined([], [one, two]).problems]
    assert said == ["two.yaml:2: B: the name is used twice; first in one.yaml:3", "one.yaml:2: Aa: there is no such rule to disable"]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("90 %", "ratio", 0.9), ("95%", "ratio", 0.95), ("4GiB", "bytes", 4 * 1024**3), ("1.5 kB", "bytes", 1500), ("2MiB/s", "bytes/s", 2 * 1024**2),
        ("1h30m", "s", 5400),
        ("250ms", "s", 0.25), ("-1s", "s", -1), ("85 °C", "celsius", 85), ("1.2 GHz", "hertz", 1.2e9), ("1e-3", "", 0.001), ("50 %", "", 0.5),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text: str, unit: str, value: float) -> None:
    assert quantity(text, unit) == pytest.approx(value)


@pytest.mark.parametrize(("text", "unit"), [("5m", "bytes"), ("4GiB", "s"), ("3/s", "bytes"), ("x", ""), ("", "s"), ("1 2", ""), ("nan", ""), ("5 %", "s")])
def test_numbers_of_another_unit_are_refused(text: str, unit: str) -> None:
    with pytest.raises(BadNumber):
        quantity(text, unit)


@given(st.integers(1, 10**6))
def test_a_duration_is_written_as_it_is_read(seconds: int) -> None:
    assert duration_s(short_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.931, "ratio", "93.1 %"), (4.2e9, "bytes", "3.91 GiB"), (125, "s", "2m 05s"), (-7, "s", "-7 s"), (0.5, "s", "0.5 s"), (91, "celsius", "91 °C"),
        (7200, "s", "2h 00m"), (123456, "", "123,456"), (float("nan"), "s", "no number"), (2e6, "bytes/s", "1.91 MiB a second"),
    ],
)  # fmt: skip
def test_values_are_written_for_people(value: float, unit: str, said: str) -> None:
    assert written(value, unit) == said
