"""Text to rules. Whatever is wrong is said with file, line, rule, what was seen, what is expected and the nearest valid name; all of it at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from string import Formatter
from typing import Final, TypeVar

from holdfast.detect.rules.document import Problem, Value, documents, nearest
from holdfast.detect.rules.rule import (
    COUNTER_FUNCTIONS,
    COUNTER_ONLY,
    LABELS,
    WITH_ARGUMENT,
    WITHOUT_COMPARISON,
    Aggregate,
    Compare,
    Condition,
    Function,
    Rule,
    Term,
    is_counter,
    metric_named,
)
from holdfast.detect.rules.units import BadNumber, duration_s, quantity, short_duration
from holdfast.detect.series import FORGET_S, HISTORY_S
from holdfast.domain.finding import BREAKING, Severity
from holdfast.domain.gauges import USER_NAME
from holdfast.domain.metric import METRICS, USER_PREFIX, Scope

_CONDITION: Final = ("metric", "where", "function", "window", "divided_by", "minus", "aggregate", "is")
_RULE: Final = ("name", "all", "any", "for", "keep_firing_for", "severity", "labels", "summary", "why", "route", "doc", "finding", "left_to", "disabled")
_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]*")
_LABEL: Final = re.compile(r"[a-z_][a-z0-9_]*")
_RESERVED: Final = frozenset({"alertname", "severity", "route", "job", "holdfast_job", "node", *LABELS.values()})
_IS: Final = re.compile(r"(>=|<=|==|!=|>|<|between\b|outside\b)\s*(.*)", re.DOTALL)
_ENDS: Final = re.compile(r"\[([^,]+),([^,]+)\]")
_TWO: Final = re.compile(r"(\S+)\s+([/-])\s+(\S+)")

_KIND: Final = re.compile(r"[a-z][a-z0-9_]*")

Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one file says."""

    rules: tuple[Rule, ...] = ()
    disabled: tuple[tuple[str, int], ...] = ()  # Name and line.
    problems: tuple[Problem, ...] = ()
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The rules that are in force, sorted by name."""

    rules: tuple[Rule, ...]
    disabled: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class _Bad(Exception):
    """This part cannot be read; what is around it can."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


def read_rules(text: str, file: str, *, sampling_s: float = 1.0) -> Read:
    """`sampling_s` is how often readings are taken: no window may be shorter."""
    document = documents(text, file)
    if isinstance(document, Problem):
        return Read(problems=(document,), file=file)
    reader = _Reader(file, sampling_s)
    reader.file_(document)
    return Read(rules=tuple(reader.rules), disabled=tuple(reader.disabled), problems=tuple(reader.problems), file=file)


def combined(shipped: Iterable[Read], given: Iterable[Read] = ()) -> RuleSet:
    """Rules of a person's own add to those that come with Holdfast, replace the one of the same name, or switch it off."""
    rules: dict[str, Rule] = {}
    problems: list[Problem] = []
    for read in shipped:
        problems += read.problems
        rules |= {rule.name: rule for rule in read.rules}
    own: dict[str, Rule] = {}
    off: dict[str, tuple[str, int]] = {}
    for read in given:
        problems += read.problems
        for rule in read.rules:
            if rule.name in own:
                first = own[rule.name]
                problems.append(Problem(file=rule.file, line=rule.line, rule=rule.name, what=f"the name is used twice; first in {first.file}:{first.line}"))
            own[rule.name] = rule
        off |= {name: (read.file, line) for name, line in read.disabled}
    replaced = tuple(sorted(own.keys() & rules.keys()))
    rules |= own
    for name, (file, line) in off.items():
        if name not in rules:
            problems.append(Problem(file=file, line=line, rule=name, what=f"there is no such rule to disable{nearest(name, rules)}"))
    kept = tuple(rules[name] for name in sorted(rules) if name not in off)
    return RuleSet(rules=kept, disabled=tuple(sorted(off.keys() & rules.keys())), replaced=replaced, problems=tuple(problems))


class _Reader:
    def __init__(self, file: str, sampling_s: float) -> None:
        self.file, self.sampling_s = file, sampling_s
        self.rules: list[Rule] = []
        self.disabled: list[tuple[str, int]] = []
        self.problems: list[Problem] = []
        self._rule = ""

    def _say(self, line: int, what: str) -> None:
        self.problems.append(Problem(file=self.file, line=line, what=what, rule=self._rule))

    def file_(self, document: Value) -> None:
        fields = document.fields
        if fields is None or "rules" not in fields or fields["rules"].items is None:
            self._say(document.line, "expected a mapping with `rules:` and a list of rules below it")
            return
        self._keys(document, ("rules",))
        lines: dict[str, int] = {}
        for item in fields["rules"].items or ():
            self._rule = ""
            try:
                rule = self._read_rule(item)
            except _Bad as bad:
                self._say(bad.line, bad.what)
                continue
            if self._rule in lines:
                self._say(item.line, f"the name is used twice; first at line {lines[self._rule]}")
            lines.setdefault(self._rule, item.line)
            if rule is not None:
                self.rules.append(rule)

    def _read_rule(self, item: Value) -> Rule | None:
        if item.fields is None:
            raise _Bad(item.line, f"a rule is a mapping with `name`, `metric`, `is` and more; seen {item.kind}")
        fields = item.fields
        if "name" not in fields:
            raise _Bad(item.line, "the rule has no `name`")
        self._rule = self._text(fields["name"])
        if not _NAME.fullmatch(self._rule):
            camel = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", self._rule))
            self._say(fields["name"].line, f"a name is CamelCase, such as {camel if _NAME.fullmatch(camel) else 'DiskNearlyFull'}; seen {self._rule!r}")
        if "disabled" in fields and self._yes(fields["disabled"]):
            self.disabled.append((self._rule, item.line))
            if set(fields) == {"name", "disabled"}:
                return None
        self._keys(item, (*_RULE, *_CONDITION))
        before = len(self.problems)
        conditions, any_ = self._conditions(item)
        rule = Rule(
            name=self._rule, conditions=tuple(conditions), any=any_, file=self.file, line=item.line,
            for_s=self._span(fields.get("for")), keep_firing_s=self._span(fields.get("keep_firing_for")),
            severity=self._one_of(fields["severity"], Severity, "severity") if "severity" in fields else Severity.WARNING,
            labels=self._labels(fields.get("labels")), summary=self._plain(fields.get("summary")), why=self._plain(fields.get("why")),
            route=self._plain(fields.get("route")), doc=self._plain(fields.get("doc")), finding=self._kind(fields.get("finding")),
            left_to=self._kind(fields.get("left_to")),
        )  # fmt: skip
        if len(conditions) == len(rule.conditions) and conditions:
            self._check_together(rule, item)
            self._check_summary(rule, fields.get("summary"), item.line)
        return rule if len(self.problems) == before else None

    # --- Conditions.

    def _conditions(self, item: Value) -> tuple[list[Condition], bool]:
        fields = item.fields or {}
        ways = [way for way in ("metric", "all", "any") if way in fields]
        if len(ways) != 1:
            seen = " and ".join(f"`{way}`" for way in ways) or "none"
            raise _Bad(item.line, f"a rule has exactly one of `metric`, `all` and `any`; seen {seen}")
        if ways == ["metric"]:
            return [self._condition(item)], False
        group = fields[ways[0]]
        stray = [key for key in _CONDITION if key in fields]
        if stray:
            self._say(fields[stray[0]].line, f"`{stray[0]}` belongs into each of the conditions below `{ways[0]}`")
        if not group.items:
            raise _Bad(group.line, f"`{ways[0]}` is a list of conditions, each with `metric` and `is`; seen {group.kind}")
        conditions = []
        for one in group.items:
            if one.fields is None:
                self._say(one.line, f"a condition is a mapping with `metric` and `is`; seen {one.kind}")
                continue
            self._keys(one, _CONDITION)
            try:
                conditions.append(self._condition(one))
            except _Bad as bad:
                self._say(bad.line, bad.what)
        return conditions, ways == ["any"]

    def _condition(self, item: Value) -> Condition:
        fields = item.fields or {}
        if "metric" not in fields:
            raise _Bad(item.line, "the condition has no `metric`")
        written = self._text(fields["metric"])
        two = _TWO.fullmatch(written)
        first = two[1] if two else written
        term = self._term(first, fields, fields["metric"].line)
        operator, other = (two[2], self._term(two[3], fields, fields["metric"].line)) if two else ("", None)
        for key, sign in (("divided_by", "/"), ("minus", "-")):
            if key in fields:
                if other is not None:
                    raise _Bad(fields[key].line, f"`{key}` cannot be used beside another one or beside a metric with {operator!r}")
                operator, other = sign, self._other(fields[key], term)
        aggregate, by = self._aggregate(fields.get("aggregate"))
        condition = Condition(term=term, operator=operator, other=other, aggregate=aggregate, by=by, where=self._where(fields.get("where"), term))
        self._check_arithmetic(condition, fields["metric"].line)
        if "is" not in fields:
            if term.function not in WITHOUT_COMPARISON:
                raise _Bad(item.line, f'the comparison is missing: add `is:`, such as `is: "> {"90 %" if condition.unit == "ratio" else "5"}"`')
            return replace(condition, compare=Compare.EQUAL, low=1.0)
        return self._compared(condition, fields["is"])

    def _other(self, value: Value, first: Term) -> Term:
        if value.fields is None:
            raise _Bad(value.line, f"expected a mapping with `metric`, `function` and `window`; seen {value.kind}")
        self._keys(value, ("metric", "function", "window"))
        metric = self._text(value.fields["metric"]) if "metric" in value.fields else first.metric
        return self._term(metric, value.fields, value.line)

    def _term(self, metric: str, fields: dict[str, Value], line: int) -> Term:
        if metric not in METRICS and not (metric.startswith(USER_PREFIX) and USER_NAME.fullmatch(metric.removeprefix(USER_PREFIX))):
            raise _Bad(line, f"there is no metric {metric!r}{nearest(metric, METRICS)}")
        function, argument = Function.LAST, 0.0
        if "function" in fields:
            function, argument = self._function(fields["function"], metric)
        window_s = self._span(fields.get("window"), 60.0)
        if "window" in fields:
            self._check_window(window_s, function, fields["window"].line)
        self._check_kind(metric, function, fields.get("function", fields.get("metric", Value(line))).line)
        return Term(metric=metric, function=function, argument=argument, window_s=window_s)

    def _function(self, value: Value, metric: str) -> tuple[Function, float]:
        name, _, rest = self._text(value).partition(" ")
        function = self._one_of(Value(value.line, text=name), Function, "function")
        if function not in WITH_ARGUMENT:
            if rest.strip():
                raise _Bad(value.line, f"{function} takes no argument; seen {rest.strip()!r}")
            return function, 0.0
        if not rest.strip():
            raise _Bad(value.line, f"{function} needs a number, such as `{function} {'0.5' if function is Function.QUANTILE else '0'}`")
        try:
            argument = quantity(rest, "ratio" if function is Function.QUANTILE else metric_named(metric).unit)
        except BadNumber as bad:
            raise _Bad(value.line, str(bad)) from bad
        if function is Function.QUANTILE and not 0 <= argument <= 1:
            raise _Bad(value.line, f"a quantile is from 0 to 1; seen {rest.strip()}")
        return function, argument

    def _aggregate(self, value: Value | None) -> tuple[Aggregate, Scope]:
        if value is None:
            return Aggregate.EACH, Scope.JOB
        name, _, rest = self._text(value).partition(" ")
        aggregate = self._one_of(Value(value.line, text=name), Aggregate, "aggregate")
        by = rest.strip().removeprefix("by").strip() or Scope.JOB
        if by not in (Scope.JOB, Scope.NODE) or (rest.strip() and not rest.strip().startswith("by ")):
            raise _Bad(value.line, f"expected `{aggregate} by job` or `{aggregate} by node`; seen {self._text(value)!r}")
        return aggregate, Scope(by)

    def _where(self, value: Value | None, term: Term) -> tuple[tuple[str, str], ...]:
        if value is None:
            return ()
        scope = metric_named(term.metric).scope
        labels = [] if scope is Scope.JOB else ["node"] if scope is Scope.NODE else ["node", scope.value]
        if value.fields is None:
            raise _Bad(value.line, f"`where` is a mapping such as {{node: 'gpu-*'}}; seen {value.kind}")
        for label, pattern in value.fields.items():
            if label not in labels:
                has = " and ".join(labels) or "none but the job"
                raise _Bad(pattern.line, f"{term.metric} has no label {label!r}; it has {has}{nearest(label, labels)}")
        return tuple(sorted((label, self._text(pattern)) for label, pattern in value.fields.items()))

    def _compared(self, condition: Condition, value: Value) -> Condition:
        text = self._text(value)
        found = _IS.fullmatch(text.strip())
        if found is None:
            raise _Bad(value.line, f"expected a comparison such as '> 5', '<= 90 %' or 'between [1, 3]'; seen {text!r}")
        compare = Compare(found[1])
        try:
            if compare not in (Compare.BETWEEN, Compare.OUTSIDE):
                return replace(condition, compare=compare, low=quantity(found[2], condition.unit))
            ends = _ENDS.fullmatch(found[2].strip())
            if ends is None:
                raise _Bad(value.line, f"expected two ends such as '{compare} [1, 3]'; seen {text!r}")
            low, high = quantity(ends[1], condition.unit), quantity(ends[2], condition.unit)
        except BadNumber as bad:
            raise _Bad(value.line, f"{bad} (the value is {condition})") from bad
        if low > high:
            raise _Bad(value.line, f"the lower end comes first; seen {text!r}")
        return replace(condition, compare=compare, low=low, high=high)

    # --- What must fit together.

    def _check_window(self, window_s: float, function: Function, line: int) -> None:
        least = self.sampling_s * (2 if function in (Function.RATE, Function.INCREASE, Function.WILL_REACH) else 1)
        if function in (Function.STALE,):
            raise _Bad(line, "stale takes no window: it is the time since the newest reading")
        if window_s < least:
            why = f", and {function} needs two" if least > self.sampling_s else ""
            raise _Bad(line, f"the window is {short_duration(window_s)}, and a reading is taken every {short_duration(self.sampling_s)}{why}")
        if window_s > HISTORY_S:
            raise _Bad(line, f"the window is {short_duration(window_s)}, and {short_duration(HISTORY_S)} of readings are kept")

    def _check_kind(self, metric: str, function: Function, line: int) -> None:
        if is_counter(metric) and function not in COUNTER_FUNCTIONS:
            raise _Bad(line, f"{metric} is a counter, which only grows: use `function: increase` or `function: rate`; seen {function}")
        if not is_counter(metric) and function in COUNTER_ONLY:
            raise _Bad(line, f"{metric} is no counter, so it has no {function}; use mean, max, min, quantile or will_reach")

    def _check_arithmetic(self, condition: Condition, line: int) -> None:
        term, other = condition.term, condition.other
        single = (Function.ABSENT, Function.NOT_FINITE, Function.STALE, Function.WILL_REACH)
        if other is not None:
            bad = next((one.function for one in (term, other) if one.function in single), None)
            if bad is not None:
                raise _Bad(line, f"{bad} is of one metric, and cannot be divided or subtracted")
            if not _fits(term.scope, other.scope):
                raise _Bad(line, f"{term.metric} is of each {term.scope} and {other.metric} of each {other.scope}: they cannot be put together")
            if condition.operator == "-" and term.unit != other.unit:
                raise _Bad(line, f"{term.metric} is in {term.unit or 'plain numbers'} and {other.metric} in {other.unit or 'plain numbers'}")
        if condition.aggregate is not Aggregate.EACH and term.function is Function.ABSENT:
            raise _Bad(line, "absent is of the whole job already, and cannot be aggregated")

    def _check_together(self, rule: Rule, item: Value) -> None:
        first = rule.conditions[0]
        for condition in rule.conditions[1:]:
            if rule.any and condition.subject is not first.subject:
                self._say(item.line, f"conditions of `any` must be of the same: {first} is of each {first.subject}, {condition} of each {condition.subject}")
            elif not _fits(first.subject, condition.subject):
                of = f"the first condition is of each {first.subject}, and {condition} of each {condition.subject}"
                self._say(item.line, f"{of}: put the finest first, or aggregate by node or job")
        if len(rule.conditions) > 1 and rule.any and any(one.term.function is Function.ABSENT for one in rule.conditions):
            self._say(item.line, "absent cannot be one of `any`: make it a rule of its own")

    def _check_summary(self, rule: Rule, value: Value | None, line: int) -> None:
        known = known_names(rule)
        if value is None:
            self._say(line, "the rule has no `summary`: a sentence with values, such as '{node}: {value} of memory is left'")
            return
        try:
            parts = list(Formatter().parse(rule.summary))
        except ValueError as error:
            self._say(value.line, f"the summary cannot be read: {error}; a brace that is meant is written twice")
            return
        for _, name, spec, conversion in parts:
            if name is None:
                continue
            if name not in known:
                self._say(value.line, f"the summary names {{{name}}}, which this rule has not{nearest(name, known)} It has {', '.join(known)}.")
            elif spec or conversion:
                self._say(value.line, f"{{{name}}} is written with its unit already; seen a format behind it")

    # --- Small values.

    def _keys(self, value: Value, known: tuple[str, ...]) -> None:
        for key, one in (value.fields or {}).items():
            if key not in known:
                self._say(one.line, f"unknown key {key!r}{nearest(key, known) or '; expected one of ' + ', '.join(known)}")
        for key, line in value.twice.items():
            self._say(line, f"the key {key!r} is written twice")

    def _text(self, value: Value) -> str:
        if value.text is None:
            raise _Bad(value.line, f"expected text; seen {value.kind}")
        return value.text.strip()

    def _plain(self, value: Value | None) -> str:
        return "" if value is None else " ".join(self._text(value).split())

    def _yes(self, value: Value) -> bool:
        text = self._text(value).lower()
        if text not in ("true", "false"):
            raise _Bad(value.line, f"expected true or false; seen {text!r}")
        return text == "true"

    def _span(self, value: Value | None, default: float = 0.0) -> float:
        if value is None:
            return default
        try:
            seconds = duration_s(self._text(value))
        except BadNumber as bad:
            raise _Bad(value.line, str(bad)) from bad
        if seconds > FORGET_S:
            raise _Bad(value.line, f"{self._text(value)} is longer than {short_duration(FORGET_S)}, after which a silent series is forgotten")
        return seconds

    def _kind(self, value: Value | None) -> str:
        """The name of a kind of finding. One that breaks the gang is not for a rule to say."""
        text = self._plain(value)
        if value is not None and (not _KIND.fullmatch(text) or text in BREAKING):
            raise _Bad(value.line, f"expected the name of a finding that stands beside a running job, such as slow_disk; seen {text!r}")
        return text

    def _one_of(self, value: Value, kinds: type[Choice], what: str) -> Choice:
        text = self._text(value)
        if text not in list(kinds):
            raise _Bad(value.line, f"unknown {what} {text!r}{nearest(text, kinds) or '; expected one of ' + ', '.join(kinds)}")
        return kinds(text)

    def _labels(self, value: Value | None) -> dict[str, str]:
        if value is None:
            return {}
        if value.fields is None:
            raise _Bad(value.line, f"`labels` is a mapping of names to text; seen {value.kind}")
        for name, one in value.fields.items():
            if not _LABEL.fullmatch(name) or name in _RESERVED:
                raise _Bad(one.line, f"{name!r} cannot be a label: expected small letters, digits and _, and none of {', '.join(sorted(_RESERVED))}")
        return {name: self._text(one) for name, one in value.fields.items()}


def known_names(rule: Rule) -> list[str]:
    """What a summary may name."""
    scope = rule.subject
    labels = ["job"] if scope is Scope.JOB else ["job", "node"] if scope is Scope.NODE else ["job", "node", scope.value]
    numbers = ["", *map(str, range(2, len(rule.conditions) + 1))]
    return [*labels, *(f"value{number}" for number in numbers), *(f"limit{number}" for number in numbers)]


def _fits(fine: Scope, other: Scope) -> bool:
    """Whether each of `fine` has at most one of `other`."""
    return other is fine or other is Scope.JOB or (other is Scope.NODE and fine is not Scope.JOB)
