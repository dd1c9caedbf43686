"""Rule tests: series in a short notation, and what must be firing when.

    tests:
      - name: a disk that fills is told of after five minutes, and forgotten when it has room again
        rule: DiskNearlyFull
        every: 10s                                    # Between two values, and between two looks; 10s unless said.
        series:
          disk_free_bytes{node=a, disk=/data}: 50x60 2x60 50x60
          disk_size_bytes{node=a, disk=/data}: 100x180
        firing:
          10m: nothing
          18m: node=a disk=/data
          30m: nothing
        says: "/data has 2 % of its space left"       # Part of what a finding said, if one cares.

Values are those of promtool: `5x3` is 5 and three more, `1+2x3` is 1 3 5 7, `9-2x3` is 9 7 5 3, `_` is no reading, `_x3` three times none, `NaN` and `Inf`
are what they say. A rule about the whole job fires for `job`; several subjects are a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.detect.rules.document import Problem, Value, documents, nearest
from holdfast.detect.rules.evaluate import Evaluator
from holdfast.detect.rules.rule import LABELS, Rule, metric_named
from holdfast.detect.rules.units import BadNumber, duration_s, short_duration
from holdfast.detect.series import Rings
from holdfast.domain.finding import Finding
from holdfast.domain.metric import METRICS, USER_PREFIX, Scope, Series
from holdfast.domain.signal import Signal

_BEGIN: Final = 1_200_000.0  # Any whole minute: windows begin at whole minutes.
_SERIES: Final = re.compile(r"([a-z0-9_]+)\s*(?:\{(.*)\})?")
_FLOAT: Final = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_VALUE: Final = re.compile(rf"(?P<blank>_)(?:x(?P<blanks>\d+))?|(?P<first>[+-]?(?:{_FLOAT}|Inf|NaN))(?P<step>[+-]{_FLOAT})?(?:x(?P<more>\d+))?")
_KEYS: Final = ("name", "rule", "every", "series", "firing", "says")
_STEPS_MAX: Final = 100_000

Subject = tuple[tuple[str, str], ...]  # Labels and their values, sorted; none for the job.


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    rule: str
    every_s: float
    series: Mapping[Series, tuple[float | None, ...]]
    firing: Mapping[float, tuple[Subject, ...]]
    says: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    case: Case
    failures: tuple[str, ...] = ()


class _Bad(Exception):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


def read_cases(text: str, file: str, rules: Iterable[str]) -> tuple[tuple[Case, ...], tuple[Problem, ...]]:
    """`rules` are the names that can be tested."""
    document = documents(text, file)
    if isinstance(document, Problem):
        return (), (document,)
    if document.fields is None or "tests" not in document.fields or document.fields["tests"].items is None:
        return (), (Problem(file=file, line=document.line, what="expected a mapping with `tests:` and a list of tests below it"),)
    known, cases, problems = list(rules), [], []
    for item in document.fields["tests"].items:
        try:
            cases.append(_case(item, file, known))
        except _Bad as bad:
            named = (item.fields or {}).get("name")
            problems.append(Problem(file=file, line=bad.line, what=bad.what, rule=(named.text or "") if named is not None else ""))
    return tuple(cases), tuple(problems)


def run_case(case: Case, rule: Rule) -> Result:
    """Feed the series and look, as often as the test says."""
    rings = Rings()
    evaluator = Evaluator([rule], rings, job="job")
    failures: list[str] = []
    said: list[str] = []
    last = max(case.firing)
    for step in range(round(last / case.every_s) + 1):
        at = step * case.every_s
        for node in sorted({series.node for series in case.series}):
            there = [
                Signal(metric=series.metric, value=value, of=series.of)
                for series, values in case.series.items()
                if series.node == node and step < len(values) and (value := values[step]) is not None
            ]
            if there:
                rings.take(node, there, at=_BEGIN + at, now=_BEGIN + at)
        said += [finding.because for finding in evaluator.look(_BEGIN + at).started]
        if at in case.firing:
            seen = sorted(_subject(rule, finding) for finding in evaluator.firing)
            if seen != sorted(case.firing[at]):
                failures.append(f"at {short_duration(at)}: expected {_named(case.firing[at])}; seen {_named(tuple(seen))}")
    if case.says and not any(case.says in one for one in said):
        failures.append(f"expected a finding that says {case.says!r}; seen {said or 'none'}")
    return Result(case=case, failures=tuple(failures))


def _subject(rule: Rule, finding: Finding) -> Subject:
    if rule.subject is Scope.JOB:
        return ()
    of = str(finding.ranks[0]) if finding.ranks else finding.of
    return tuple(sorted({"node": finding.node}.items() | ({LABELS[rule.subject]: of}.items() if rule.subject in LABELS else set())))


def _named(subjects: tuple[Subject, ...]) -> str:
    return "; ".join(" ".join(f"{label}={value}" for label, value in subject) or "job" for subject in subjects) or "nothing"


def _case(item: Value, file: str, known: list[str]) -> Case:
    fields = item.fields
    if fields is None:
        raise _Bad(item.line, f"a test is a mapping; seen {item.kind}")
    for key, value in fields.items():
        if key not in _KEYS:
            raise _Bad(value.line, f"unknown key {key!r}{nearest(key, _KEYS) or '; expected one of ' + ', '.join(_KEYS)}")
    for key in ("name", "rule", "series", "firing"):
        if key not in fields:
            raise _Bad(item.line, f"the test has no `{key}`")
    rule = _text(fields["rule"])
    if rule not in known:
        raise _Bad(fields["rule"].line, f"there is no rule {rule!r}{nearest(rule, known)}")
    every_s = _span(fields["every"], _text(fields["every"])) if "every" in fields else 10.0
    if every_s < 1.0:
        raise _Bad(fields["every"].line, f"`every` is at least 1s; seen {_text(fields['every'])}")
    series = {_series(name, value.line): _values(_text(value), value.line) for name, value in _fields(fields["series"]).items()}
    firing = {_span(value, at): _subjects(value) for at, value in _fields(fields["firing"]).items()}
    if not firing:
        raise _Bad(fields["firing"].line, "`firing` says when what fires: it needs at least one time")
    for at in firing:
        if at % every_s:
            raise _Bad(fields["firing"].line, f"{short_duration(at)} is no multiple of the {short_duration(every_s)} between two looks")
        if at / every_s > _STEPS_MAX:
            raise _Bad(fields["firing"].line, f"{short_duration(at)} is more than {_STEPS_MAX:,} looks away; raise `every`")
    says = _text(fields["says"]) if "says" in fields else ""
    return Case(name=_text(fields["name"]), rule=rule, every_s=every_s, series=series, firing=firing, says=says, file=file, line=item.line)


def _series(text: str, line: int) -> Series:
    found = _SERIES.fullmatch(text.strip())
    if found is None:
        raise _Bad(line, f"expected a series such as gpus{{node=a}}; seen {text!r}")
    name = found[1]
    if name not in METRICS and not name.startswith(USER_PREFIX):
        raise _Bad(line, f"there is no metric {name!r}{nearest(name, METRICS)}")
    labels = _labels(found[2] or "", line)
    scope = metric_named(name).scope
    wanted = set() if scope is Scope.JOB else {"node"} if scope is Scope.NODE else {"node", scope.value}
    if set(labels) != wanted:
        raise _Bad(line, f"{name} has {'the labels ' + ', '.join(sorted(wanted)) if wanted else 'no labels'}; seen {', '.join(sorted(labels)) or 'none'}")
    return Series(metric=name, node=labels.get("node", ""), of=labels.get(scope.value, "") if scope in LABELS else "")


def _labels(text: str, line: int) -> dict[str, str]:
    labels = {}
    for part in text.replace(",", " ").split():
        label, equals, value = part.partition("=")
        if not equals:
            raise _Bad(line, f"expected labels such as node=a; seen {part!r}")
        labels[label] = value.strip("'\"")
    return labels


def _values(text: str, line: int) -> tuple[float | None, ...]:
    values: list[float | None] = []
    for word in text.split():
        found = _VALUE.fullmatch(word)
        if found is None:
            raise _Bad(line, f"expected values such as 5x3, 1+2x3, _x3 or NaN; seen {word!r}")
        if max(int(found["blanks"] or 0), int(found["more"] or 0)) > _STEPS_MAX:
            raise _Bad(line, f"{word!r} is more than {_STEPS_MAX:,} values")
        if found["blank"]:
            values += [None] * int(found["blanks"] or 1)
        else:
            first, step, more = float(found["first"]), float(found["step"] or 0.0), int(found["more"] or 0)
            values += [first + step * number for number in range(more + 1)]
    return tuple(values)


def _subjects(value: Value) -> tuple[Subject, ...]:
    if value.items is not None:
        return tuple(subject for one in value.items for subject in _subjects(one))
    text = _text(value)
    if text in ("nothing", ""):
        return ()
    return ((),) if text == "job" else (tuple(sorted(_labels(text, value.line).items())),)


def _span(value: Value, text: str) -> float:
    try:
        return duration_s(text)
    except BadNumber as bad:
        raise _Bad(value.line, str(bad)) from bad


def _text(value: Value) -> str:
    if value.text is None:
        raise _Bad(value.line, f"expected text; seen {value.kind}")
    return value.text.strip()


def _fields(value: Value) -> dict[str, Value]:
    if value.fields is None:
        raise _Bad(value.line, f"expected a mapping; seen {value.kind}")
    return value.fields
