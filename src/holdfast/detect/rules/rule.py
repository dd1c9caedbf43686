"""What a rule is, once it was read and found good. `docs/rules.md` says what each part means to the person who writes one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.detect.rules.units import short_duration
from holdfast.domain.finding import Severity
from holdfast.domain.metric import METRICS, USER_PREFIX, Kind, Metric, Scope, user_metric


class Function(StrEnum):
    """What is made of the readings of one series in the window."""

    LAST = "last"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    QUANTILE = "quantile"
    RATE = "rate"
    INCREASE = "increase"
    WILL_REACH = "will_reach"  # Seconds until a straight line through the readings reaches the argument.
    STALE = "stale"  # Seconds since the newest reading.
    ABSENT = "absent"  # 1 when no series of the metric has a reading.
    NOT_FINITE = "not_finite"  # 1 when the newest reading is NaN or infinite, else 0.


class Aggregate(StrEnum):
    """What is made of all series of a node or of the job."""

    EACH = "each"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    SUM = "sum"
    COUNT = "count"
    SPREAD = "spread"  # Largest less smallest.
    OVER_MEDIAN = "over_median"  # Each series over the median of all: names the one that differs.


COUNTER_FUNCTIONS = frozenset({Function.RATE, Function.INCREASE, Function.LAST, Function.STALE, Function.ABSENT, Function.COUNT})
COUNTER_ONLY = frozenset({Function.RATE, Function.INCREASE})
WITH_ARGUMENT = frozenset({Function.QUANTILE, Function.WILL_REACH})
WITHOUT_COMPARISON = frozenset({Function.ABSENT, Function.NOT_FINITE})
LABELS = {scope: scope.value for scope in Scope if scope not in (Scope.JOB, Scope.NODE)}


class Compare(StrEnum):
    ABOVE = ">"
    BELOW = "<"
    AT_LEAST = ">="
    AT_MOST = "<="
    EQUAL = "=="
    UNEQUAL = "!="
    BETWEEN = "between"  # Ends included.
    OUTSIDE = "outside"  # Ends not included: the opposite of between.


def metric_named(name: str) -> Metric:
    """One of the catalogue, or one of a script."""
    return METRICS[name] if name in METRICS else user_metric(name.removeprefix(USER_PREFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    metric: str
    function: Function = Function.LAST
    argument: float = 0.0
    window_s: float = 60.0

    @property
    def scope(self) -> Scope:
        return Scope.JOB if self.function is Function.ABSENT else metric_named(self.metric).scope

    @property
    def unit(self) -> str:
        unit = metric_named(self.metric).unit
        match self.function:
            case Function.RATE:
                return f"{unit}/s"
            case Function.WILL_REACH | Function.STALE:
                return "s"
            case Function.COUNT | Function.ABSENT | Function.NOT_FINITE:
                return ""
            case _:
                return unit

    def __str__(self) -> str:
        argument = f"{self.argument:g}, " if self.function in WITH_ARGUMENT else ""
        window = "" if self.function is Function.STALE else f", {short_duration(self.window_s)}"
        return f"{self.function}({argument}{self.metric}{window})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    term: Term
    where: tuple[tuple[str, str], ...] = ()  # Label and pattern.
    operator: str = ""  # "/" or "-", with `other`.
    other: Term | None = None
    aggregate: Aggregate = Aggregate.EACH
    by: Scope = Scope.JOB  # JOB or NODE: who is taken together.
    compare: Compare = Compare.ABOVE
    low: float = 0.0  # The limit; of between and outside the lower one,
    high: float = 0.0  # and the upper one.

    @property
    def subject(self) -> Scope:
        """What one value of it is of."""
        return self.term.scope if self.aggregate in (Aggregate.EACH, Aggregate.OVER_MEDIAN) else self.by

    @property
    def unit(self) -> str:
        """Of its value."""
        if self.aggregate is Aggregate.OVER_MEDIAN:
            return "ratio"
        if self.aggregate is Aggregate.COUNT:
            return ""
        if self.operator == "/":
            assert self.other is not None
            return "ratio" if self.term.unit == self.other.unit else ""
        return self.term.unit

    def __str__(self) -> str:
        said = f"{self.term}" if self.other is None else f"{self.term} {self.operator} {self.other}"
        return said if self.aggregate is Aggregate.EACH else f"{self.aggregate} by {self.by} of {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    conditions: tuple[Condition, ...]
    any: bool = False  # One condition is enough; else all must hold.
    for_s: float = 0.0
    keep_firing_s: float = 0.0
    severity: Severity = Severity.WARNING
    labels: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    why: str = ""
    route: str = ""
    doc: str = ""
    finding: str = ""  # What it finds, where that has a name of its own: so that it joins the story of what explains it, or of what it explains.
    left_to: str = ""  # The detector that sees the same sooner: inside Holdfast the rule is left to it, and only exported.
    file: str = ""
    line: int = 0

    @property
    def kind(self) -> str:
        return self.finding or f"rule:{self.name}"

    @property
    def subject(self) -> Scope:
        return self.conditions[0].subject

    @property
    def metrics(self) -> tuple[str, ...]:
        terms = [term for condition in self.conditions for term in (condition.term, condition.other) if term is not None]
        return tuple(dict.fromkeys(term.metric for term in terms))


def is_counter(name: str) -> bool:
    return metric_named(name).kind is Kind.COUNTER
