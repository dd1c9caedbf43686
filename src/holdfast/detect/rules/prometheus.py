"""Rules and their tests as Prometheus takes them: a rule file, and a file for `promtool test rules`.

Metrics carry the prefix `holdfast_`. Labels are `node` and what tells one series of a node from the next (`rank`, `gpu`, `disk`, `interface`, `peer`); the
job is `holdfast_job`, because Prometheus puts a `job` of its own, the name of the scrape configuration, on every series.

What Prometheus would take for something else is not written down as if it were the same: such a rule is left out and told of, with the reason. Where both mean
the same but for a detail (docs/rules.md lists them), it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final

import yaml

from holdfast.detect.rules.cases import Case, Subject
from holdfast.detect.rules.evaluate import limit
from holdfast.detect.rules.rule import LABELS, Aggregate, Compare, Condition, Function, Rule, Term, metric_named
from holdfast.detect.rules.units import short_duration, written
from holdfast.detect.series import FORGET_S
from holdfast.domain.metric import PREFIX, Scope

JOB_LABEL: Final = "holdfast_job"
SCRAPE_S: Final = 15.0
_TEST_JOB: Final = "job"
_SIGNS: Final = re.compile(r"[*?\[]")
_OVER_TIME: Final = {Function.LAST: "last", Function.MEAN: "avg", Function.MIN: "min", Function.MAX: "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    text: str
    rules: tuple[str, ...]
    left_out: Mapping[str, str]  # Rule to reason.


class _Inexpressible(Exception):
    """PromQL has no words for it; the message is the reason."""


def exported(rules: Iterable[Rule], *, scrape_s: float = SCRAPE_S) -> Exported:
    """A rule file. `scrape_s` is how often Prometheus asks: windows must hold two answers."""
    groups: dict[str, list[dict[str, Any]]] = {}
    left_out: dict[str, str] = {}
    done: list[str] = []
    for rule in rules:
        try:
            groups.setdefault(_group(rule), []).append(_alert(rule, scrape_s))
            done.append(rule.name)
        except _Inexpressible as reason:
            left_out[rule.name] = str(reason)
    head = ["# Made by `holdfast rules export --prometheus`. Change the rules and make it again.", f"# The job's name is the label {JOB_LABEL}."]
    head += [f"# Left out: {name}: {reason}." for name, reason in left_out.items()]
    document = {"groups": [{"name": name, "rules": alerts} for name, alerts in groups.items() if alerts]}
    return Exported(text="\n".join(head) + "\n" + _dumped(document), rules=tuple(done), left_out=left_out)


def promtool_tests(cases: Iterable[Case], rules: Iterable[Rule], rule_file: str) -> str:
    """The same tests for promtool: at each time exactly those alerts are firing. `cases` are of one pace, at which promtool looks too."""
    cases, by_name = tuple(cases), {rule.name: rule for rule in rules}
    (every_s,) = {case.every_s for case in cases}
    tests = [_test(case, by_name[case.rule]) for case in cases if case.rule in by_name]
    return _dumped({"rule_files": [rule_file], "evaluation_interval": short_duration(every_s), "tests": tests})


def expression(rule: Rule) -> str:
    """PromQL for when the rule holds."""
    first, *others = rule.conditions
    said = _condition(first)
    for condition in others:
        on = f"on ({', '.join(_labels(condition.subject))})"
        if condition.term.function is Function.ABSENT:
            present = f"present_over_time({_selector(condition.term, condition.where)}[{short_duration(condition.term.window_s)}])"
            said = f"({said}) unless {on} count by ({JOB_LABEL}) ({present})"
        else:
            said = f"({said}) {'or' if rule.any else 'and'} {on} ({_condition(condition)})"
    return said


def _alert(rule: Rule, scrape_s: float) -> dict[str, Any]:
    for condition in rule.conditions:
        for term in (condition.term, condition.other):
            if term is not None and term.function is not Function.STALE and term.window_s < 2 * scrape_s:
                window, scrape = short_duration(term.window_s), short_duration(scrape_s)
                raise _Inexpressible(f"its window of {window} holds less than two readings when Prometheus asks every {scrape}")
    alert: dict[str, Any] = {"alert": rule.name, "expr": expression(rule)}
    if rule.for_s:
        alert["for"] = short_duration(rule.for_s)
    if rule.keep_firing_s:
        alert["keep_firing_for"] = short_duration(rule.keep_firing_s)
    alert["labels"] = _alert_labels(rule)
    alert["annotations"] = {"summary": _summary(rule)}
    if rule.why:
        alert["annotations"]["description"] = rule.why.replace("{{", "{ {")
    if rule.doc:
        alert["annotations"]["runbook_url"] = rule.doc
    return alert


def _alert_labels(rule: Rule) -> dict[str, str]:
    return {"severity": rule.severity.value, **({"route": rule.route} if rule.route else {}), **rule.labels}


# --- Expressions.


def _condition(condition: Condition) -> str:
    function = condition.term.function
    if function in (Function.STALE, Function.ABSENT, Function.NOT_FINITE):
        return _special(condition)
    term, other = condition.term, condition.other
    said = _term(term, condition.where)
    if other is not None:
        against = _term(other, condition.where if other.scope is term.scope else ())
        against = f"({against} != 0)" if condition.operator == "/" else against
        left = "" if other.scope is term.scope else " group_left ()"
        said = f"{said} {condition.operator} on ({', '.join(_labels(other.scope))}){left} {against}"
    return _compared(condition, _aggregated(condition, said))


def _special(condition: Condition) -> str:
    """Functions whose value PromQL does not have, but whether they hold."""
    term = condition.term
    selector, window = _selector(term, condition.where), short_duration(term.window_s)
    if condition.aggregate is not Aggregate.EACH:
        raise _Inexpressible(f"{term.function} cannot be aggregated in PromQL")
    if term.function is Function.STALE:
        if condition.compare not in (Compare.ABOVE, Compare.AT_LEAST):
            raise _Inexpressible("of stale PromQL can only say that it is above a limit")
        return f"present_over_time({selector}[{short_duration(FORGET_S)}]) unless present_over_time({selector}[{short_duration(condition.low)}])"
    if condition.compare is not Compare.EQUAL or condition.low != 1.0:
        raise _Inexpressible(f"of {term.function} PromQL can only say that it is so")
    if term.function is Function.ABSENT:
        return f"absent_over_time({selector}[{window}])"
    newest = f"last_over_time({selector}[{window}])"
    return f"({newest} != {newest}) or (abs({newest}) == Inf)"


def _term(term: Term, where: tuple[tuple[str, str], ...]) -> str:
    selector, window = _selector(term, where), short_duration(term.window_s)
    match term.function:
        case Function.LAST | Function.MEAN | Function.MIN | Function.MAX:
            return f"{_OVER_TIME[term.function]}_over_time({selector}[{window}])"
        case Function.QUANTILE:
            return f"quantile_over_time({_number(term.argument)}, {selector}[{window}])"
        case Function.RATE | Function.INCREASE:
            return f"{term.function}({selector}[{window}])"
        case Function.WILL_REACH:
            half = short_duration(math.ceil(term.window_s / 2))
            left = f"({_number(term.argument)} - last_over_time({selector}[1m])) / deriv({selector}[{window}])"
            return f"(({left} >= 0) and present_over_time({selector}[{half}] offset {half}))"
        case Function.SUM | Function.COUNT:
            raise _Inexpressible(f"{term.function} depends on how often readings are taken, and Prometheus takes them at its own pace")
        case _:
            raise _Inexpressible(f"{term.function} cannot be part of a calculation in PromQL")


def _aggregated(condition: Condition, said: str) -> str:
    by = ", ".join(_labels(condition.by))
    match condition.aggregate:
        case Aggregate.EACH:
            return said
        case Aggregate.MEAN:
            return f"avg by ({by}) ({said})"
        case Aggregate.SPREAD:
            return f"max by ({by}) ({said}) - min by ({by}) ({said})"
        case Aggregate.OVER_MEDIAN:
            median = f"(quantile by ({by}) (0.5, {said}) and count by ({by}) ({said}) >= 3) > 0"
            return f"({said}) / on ({by}) group_left () ({median})"
        case _:
            return f"{condition.aggregate} by ({by}) ({said})"


def _compared(condition: Condition, said: str) -> str:
    low, high = _number(condition.low), _number(condition.high)
    whole = f"({said})" if condition.other is not None or condition.aggregate is not Aggregate.EACH else said
    match condition.compare:
        case Compare.BETWEEN:
            return f"({whole} >= {low}) <= {high}"
        case Compare.OUTSIDE:
            return f"({whole} < {low}) or ({whole} > {high})"
        case _:
            return f"{whole} {condition.compare} {low}"


def _selector(term: Term, where: tuple[tuple[str, str], ...]) -> str:
    parts = [f"{label}=~{_quoted(_regex(pattern))}" if _SIGNS.search(pattern) else f"{label}={_quoted(pattern)}" for label, pattern in where]
    return metric_named(term.metric).exported + (f"{{{', '.join(parts)}}}" if parts else "")


def _regex(pattern: str) -> str:
    """A shell pattern as RE2."""
    said = ""
    for part in re.findall(r"\[!?\]?[^\]]*\]|.", pattern):
        if part in ("*", "?"):
            said += ".*" if part == "*" else "."
        elif len(part) > 1:
            inside = part[1:-1].replace("\\", "\\\\")
            said += f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
        else:
            said += re.escape(part)
    return said


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e15 else repr(value)


def _labels(scope: Scope) -> list[str]:
    return [JOB_LABEL] if scope is Scope.JOB else [JOB_LABEL, "node"] if scope is Scope.NODE else [JOB_LABEL, "node", scope.value]


def _group(rule: Rule) -> str:
    stem = rule.file.rpartition("/")[2].rpartition(".")[0]
    return f"{PREFIX}{re.sub(r'[^a-zA-Z0-9_]', '_', stem) or 'rules'}"


# --- What people read.


def _summary(rule: Rule) -> str:
    said = ""
    for text, name, _, _ in Formatter().parse(rule.summary):
        said += text.replace("{{", "{ {")
        if name is not None:
            said += _placeholder(rule, name)
    return said


def _placeholder(rule: Rule, name: str) -> str:
    if name == "value":
        first = rule.conditions[0]
        return written(first.low, first.unit) if first.term.function is Function.STALE else _humanized(first.unit)
    for what in ("value", "limit"):
        # The values of further conditions are not at hand in an alert of Prometheus; their limits are.
        if name.startswith(what):
            return limit(rule.conditions[int(name.removeprefix(what) or 1) - 1])
    return f"{{{{ $labels.{JOB_LABEL if name == 'job' else name} }}}}"


def _humanized(unit: str) -> str:
    base, per = unit.removesuffix("/s"), " a second" if unit.endswith("/s") else ""
    match base:
        case "ratio":
            return f"{{{{ $value | humanizePercentage }}}}{per}"
        case "bytes":
            return f"{{{{ $value | humanize1024 }}}}B{per}"
        case "s" if not per:
            return "{{ $value | humanizeDuration }}"
        case _:
            called = {"s": " s", "celsius": " °C", "watts": " W", "hertz": " Hz"}.get(base, "")
            return f'{{{{ $value | printf "%.4g" }}}}{called}{per}'


# --- Tests.


def _test(case: Case, rule: Rule) -> dict[str, Any]:
    ask = f'ALERTS{{alertname="{rule.name}", alertstate="firing"}}'
    return {
        "name": case.name,
        "interval": short_duration(case.every_s),
        "input_series": [
            {"series": _series_name(series.metric, series.node, series.of), "values": _notation(values)} for series, values in case.series.items()
        ],
        "promql_expr_test": [
            {"expr": ask, "eval_time": short_duration(at), "exp_samples": [{"labels": _alerts(rule, subject), "value": 1} for subject in subjects]}
            for at, subjects in sorted(case.firing.items())
        ],
    }  # fmt: skip


def _series_name(metric: str, node: str, of: str) -> str:
    scope = metric_named(metric).scope
    labels = {JOB_LABEL: _TEST_JOB, "node": node} | ({LABELS[scope]: of} if scope in LABELS else {})
    return f"{PREFIX}{metric}{{{', '.join(f'{label}={_quoted(value)}' for label, value in labels.items() if value)}}}"


def _alerts(rule: Rule, subject: Subject) -> str:
    alone = len(rule.conditions) == 1 and rule.conditions[0].term.function is Function.ABSENT  # Nothing is there to say of which job.
    labels = {"alertname": rule.name, "alertstate": "firing", **({} if alone else {JOB_LABEL: _TEST_JOB}), **dict(subject), **_alert_labels(rule)}
    return f"ALERTS{{{', '.join(f'{label}={_quoted(value)}' for label, value in labels.items())}}}"


def _notation(values: tuple[float | None, ...]) -> str:
    """Runs of the same value in promtool's own words, of which this version of it understands the long ones only."""
    runs: list[list[Any]] = []
    for value in values:
        same = runs and (value == runs[-1][0] or (value is not None and runs[-1][0] is not None and value != value and runs[-1][0] != runs[-1][0]))
        if same:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return " ".join(_run(value, number) for value, number in runs)


def _run(value: float | None, number: int) -> str:
    if value is None:
        return f"_x{number}"
    if not math.isfinite(value):
        return " ".join([("NaN" if value != value else "Inf" if value > 0 else "-Inf")] * number)
    return f"{value!r}+0x{number - 1}"


def _dumped(document: Any) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return text
