"""Metrics as Prometheus reads them: its text format 0.0.4, and OpenMetrics 1.0 for those who ask for it.

A `Family` is one metric with all its series. Labels are `holdfast_job` (Prometheus puts a `job` of its own on every series), `node`, and the label of the
metric's scope: the same names that exported rules use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.domain.metric import Metric, Scope

JOB_LABEL: Final = "holdfast_job"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TOTAL: Final = "_total"
_INFO: Final = "_info"
_LINES: Final = 2000  # In one piece: whoever sends them looks after others between two pieces.

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    kind: Literal["gauge", "counter", "info"]
    help: str
    samples: Iterable[tuple[Labels, float]]


def family_of(metric: Metric, job: str, rows: Iterable[tuple[str, str, float]]) -> Family:
    """A metric of the catalogue; the rows are node, what of it, and value."""
    scope, begin = metric.scope, ((JOB_LABEL, job),)

    def labels(node: str, of: str) -> Labels:
        if scope is Scope.JOB:
            return begin
        return (*begin, ("node", node)) if scope is Scope.NODE else (*begin, ("node", node), (scope.value, of))

    return Family(
        name=metric.exported, kind=metric.kind.value, help=metric.help, samples=((labels(node, of), value) for node, of, value in rows)
    )  # fmt: skip


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header puts OpenMetrics at least as high as plain text."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (one.strip() for one in part.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return 0.0 < weights["application/openmetrics-text"] >= weights["text/plain"]


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def exposition(families: Iterable[Family], *, openmetrics: bool) -> Iterator[str]:
    """The text, in pieces. A family without series is left out."""
    typed: set[str] = set()
    for family in families:
        lines: list[str] = []
        headed = False
        for labels, value in family.samples:
            if not headed:
                headed, lines = True, [_head(family, typed, openmetrics=openmetrics)]
            lines.append(f"{family.name}{_braced(labels)} {number(value)}\n")
            if len(lines) >= _LINES:
                yield "".join(lines)
                lines = []
        if lines:
            yield "".join(lines)
    if openmetrics:
        yield "# EOF\n"


def _head(family: Family, typed: set[str], *, openmetrics: bool) -> str:
    name = family.name
    kind: str = "gauge" if family.kind == "info" else family.kind
    said = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    if openmetrics:
        # There a counter is named without its suffix. Where a gauge has that name already, two would be one: it goes without a type.
        suffix = {"counter": _TOTAL, "info": _INFO}.get(family.kind, "")
        short = name.removesuffix(suffix)
        name, kind = (short, family.kind) if short not in typed else (name, "unknown")
        said = said.replace('"', '\\"')
    typed.add(name)
    return f"# HELP {name} {said}\n# TYPE {name} {kind}\n"


def _braced(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels) + "}" if labels else ""


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") if "\\" in text or '"' in text or "\n" in text else text


def number(value: float) -> str:
    """As Go reads it back to the same bits; whole numbers without a point."""
    if not math.isfinite(value):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    return f"{value:.0f}" if value == int(value) and abs(value) < 2**53 else repr(float(value))
