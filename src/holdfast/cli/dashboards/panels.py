"""Panels: what a dashboard shows, said once, from the catalogue's own names. A name that is not in the catalogue cannot be written.

A `Query` knows which metric it is about, so that the threshold lines of its panel come from the rules about the same value, and a rule that changes moves
its line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from holdfast.detect.rules.evaluate import limit
from holdfast.detect.rules.rule import Aggregate, Compare, Condition, Function, Rule
from holdfast.detect.rules.units import short_duration
from holdfast.domain.finding import Severity
from holdfast.domain.metric import METRICS, PREFIX, Kind, Scope
from holdfast.wire.exposition import JOB_LABEL

RATE_INTERVAL: Final = "$__rate_interval"
_LEVELS: Final = (Function.LAST, Function.MEAN, Function.MIN, Function.MAX, Function.QUANTILE)
_MOVING: Final = (Function.RATE, Function.INCREASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """PromQL, and what it shows: `metric`, divided by `over`, per second when `rated`. A value that is aggregated has the thresholds of no rule about each."""

    expression: str
    legend: str
    metric: str = ""
    over: str = ""
    rated: bool = False
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    value: float
    severity: Severity
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    stacked: bool = False
    width: int = 12  # Of 24.

    @property
    def unit(self) -> str:
        return self.queries[0].unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)


# --- Queries.


def newest(metric: str) -> Query:
    return Query(expression=_selected(metric), legend=_legend(metric), metric=metric, unit=METRICS[metric].unit)


def ratio(metric: str, over: str) -> Query:
    unit = "ratio" if METRICS[metric].unit == METRICS[over].unit else ""
    return Query(expression=f"{_selected(metric)} / {_selected(over)}", legend=_legend(metric), metric=metric, over=over, unit=unit)


def rate(metric: str) -> Query:
    assert METRICS[metric].kind is Kind.COUNTER
    found = Query(expression=f"rate({_selected(metric)}[{RATE_INTERVAL}])", legend=_legend(metric), metric=metric, rated=True)
    return replace(found, unit=f"{METRICS[metric].unit}/s")


def grown(metric: str, window: str = "10m") -> Query:
    """How much a counter grew: for what happens seldom."""
    return Query(expression=f"increase({_selected(metric)}[{window}])", legend=_legend(metric), unit=METRICS[metric].unit)


def of_job(how: Literal["avg", "max", "min", "sum"], metric: str, legend: str = "") -> Query:
    """One line for each job."""
    said = f"{how} by ({JOB_LABEL}) ({_selected(metric)})"
    return Query(expression=said, legend=legend or f"{{{{{JOB_LABEL}}}}}", unit=METRICS[metric].unit)


def over_median(metric: str) -> Query:
    each = f"avg_over_time({_selected(metric)}[5m])"
    said = f"{each} / on ({JOB_LABEL}) group_left () quantile by ({JOB_LABEL}) (0.5, {each})"
    return Query(expression=said, legend=_legend(metric), unit="ratio")


def written(expression: str, legend: str, unit: str = "") -> Query:
    """PromQL by hand; `{job}` and `{node}` stand for the selectors."""
    selectors = {"job": f'{JOB_LABEL}=~"$job"', "node": f'{JOB_LABEL}=~"$job", node=~"$node"'}
    for name, said in selectors.items():
        expression = expression.replace("{" + name + "}", "{" + said + "}")
    return Query(expression=expression, legend=legend, unit=unit)


def _selected(metric: str) -> str:
    chosen = f'{JOB_LABEL}=~"$job"' + ("" if METRICS[metric].scope is Scope.JOB else ', node=~"$node"')
    return f"{PREFIX}{metric}{{{chosen}}}"


def _legend(metric: str) -> str:
    match METRICS[metric].scope:
        case Scope.JOB:
            return f"{{{{{JOB_LABEL}}}}}"
        case Scope.NODE:
            return "{{node}}"
        case Scope.RANK:
            return "rank {{rank}}"
        case scope:
            return f"{{{{node}}}} {{{{{scope.value}}}}}"


# --- Thresholds.


def thresholds(panel: Panel, rules: Iterable[Rule]) -> list[Threshold]:
    """Where the rules about just what the panel shows begin to hold."""
    found = {
        Threshold(value=value, severity=rule.severity, says=_says(rule, condition))
        for rule in rules for condition in rule.conditions for query in panel.queries
        if query.metric and (value := _line(query, condition)) is not None
    }  # fmt: skip
    return sorted(found, key=lambda one: (one.value, one.says))


def _line(query: Query, condition: Condition) -> float | None:
    term, other = condition.term, condition.other
    same = term.metric == query.metric and (other.metric if other is not None else "") == query.over and condition.aggregate is Aggregate.EACH
    if not same or condition.compare not in (Compare.ABOVE, Compare.BELOW, Compare.AT_LEAST, Compare.AT_MOST) or condition.operator == "-":
        return None
    if query.rated:
        return condition.low / (term.window_s if term.function is Function.INCREASE else 1.0) if term.function in _MOVING else None
    return condition.low if term.function in _LEVELS else None


def _says(rule: Rule, condition: Condition) -> str:
    lasting = f" for {short_duration(rule.for_s)}" if rule.for_s else ""
    return f"{rule.name} ({rule.severity}): {condition} {limit(condition)}{lasting}"
