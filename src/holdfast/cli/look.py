"""A look: all that `holdfast watch` shows of one moment, as plain values. Drawn by `watch_table`, written by `--json`, told in a line over a pipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.cli.spark import PARTS
from holdfast.cli.words import duration, one_line
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.goodput import Bucket
from holdfast.domain.metric import METRICS, USER_PREFIX, Scope
from holdfast.wire.messages import Figures, View

NO_STEP: Final = "the script has told of no step: whether it trains is not known"
Numbers = dict[str, float]  # By metric.
_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    view: View
    ranks: Mapping[int, Numbers]
    rank_nodes: Mapping[int, str]
    nodes: Mapping[str, Numbers]
    things: Mapping[Scope, Mapping[tuple[str, str], Numbers]]  # GPUs, disks, interfaces, peers: by node and name.
    findings: tuple[Finding, ...] = ()
    nodes_left_out: int = 0
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # The course of a metric over all ranks, oldest first.

    @property
    def pids(self) -> dict[int, int]:
        return {reading.rank: reading.pid for reading in self.view.ranks}

    @property
    def tells_nothing(self) -> bool:
        """Whether the ranks are up and have told of no step, so that nobody can say whether they train."""
        return Bucket.UNKNOWN in self.view.buckets

    def step_parts(self, rank: int) -> Numbers:
        said = self.ranks[rank]
        return {part: said[f"step_{part}_seconds"] for part in PARTS if f"step_{part}_seconds" in said}

    def over_ranks(self, metric: str) -> float:
        """The mean; NaN where no rank says it."""
        values = [said[metric] for said in self.ranks.values() if math.isfinite(said.get(metric, math.nan))]
        return sum(values) / len(values) if values else math.nan


def look_from(view: View, figures: Figures) -> Look:
    ranks: dict[int, Numbers] = {reading.rank: {"step": float(reading.step)} for reading in view.ranks if reading.step >= 0}
    nodes: dict[str, Numbers] = {node.name: {} for node in view.nodes if node.connected}
    rank_nodes: dict[int, str] = {}
    things: dict[Scope, dict[tuple[str, str], Numbers]] = {}
    for metric, node, of, value in figures.values:
        scope = METRICS[metric].scope if metric in METRICS else Scope.RANK
        if scope is Scope.RANK and of.isdigit():
            ranks.setdefault(int(of), {}).setdefault(metric, value)  # Where a rank is the view says, as of the same moment as the step of the job.
            rank_nodes[int(of)] = node
        elif scope is Scope.NODE:
            nodes.setdefault(node, {})[metric] = value
        elif scope is not Scope.JOB:
            things.setdefault(scope, {}).setdefault((node, of), {})[metric] = value
    return Look(
        view=view, ranks=dict(sorted(ranks.items())), rank_nodes=rank_nodes, nodes=dict(sorted(nodes.items())), things=things,
        findings=tuple(sorted(figures.findings, key=lambda one: (_WORST_FIRST.index(one.severity), one.key))), nodes_left_out=figures.nodes_left_out,
    )  # fmt: skip


def look_json(look: Look) -> dict[str, Any]:
    """One object. What is not a finite number is null."""
    view = look.view
    return {
        "kind": "look", "job": view.job, "at": view.at, "phase": view.phase, "generation": view.generation, "outcome": view.outcome or None,
        "step": view.step if view.step >= 0 else None, "steps_total": view.steps_total or None, "goodput": view.goodput,
        "ranks": [{"rank": rank, "pid": look.pids.get(rank), "node": look.rank_nodes.get(rank), **_finite(said)} for rank, said in look.ranks.items()],
        "nodes": [{"node": node, **_finite(said)} for node, said in look.nodes.items()],
        **{
            f"{scope}s": [{"node": node, scope.value: of, **_finite(said)} for (node, of), said in sorted(look.things.get(scope, {}).items())]
            for scope in (Scope.GPU, Scope.DISK, Scope.INTERFACE, Scope.PEER)
        },
        "findings": [
            {"kind": one.kind, "severity": one.severity.value, "because": one.because, "node": one.node or None, "ranks": list(one.ranks), "of": one.of or None}
            for one in look.findings
        ],
        "nodes_left_out": look.nodes_left_out,
    }  # fmt: skip


def _finite(said: Numbers) -> dict[str, float | None]:
    return {metric: value if math.isfinite(value) else None for metric, value in said.items()}


def look_line(look: Look) -> str:
    """The same in a line, for those who read lines."""
    view = look.view
    of = f" of {view.steps_total:,}" if view.steps_total else ""
    told = [one_line(view.phase), *([f"step {view.step:,}{of}"] if view.step >= 0 else [])]
    if math.isfinite(loss := look.over_ranks("loss")):
        told.append(f"loss {loss:.4g}")
    if math.isfinite(step_s := look.over_ranks("step_seconds")):
        parts = {part: look.over_ranks(f"step_{part}_seconds") for part in PARTS}
        shares = ", ".join(f"{part} {100 * seconds / step_s:.0f} %" for part, seconds in parts.items() if math.isfinite(seconds) and step_s > 0)
        told.append(f"{step_time(step_s)} a step ({shares})" if shares else f"{step_time(step_s)} a step")
    told.append(f"{len(look.findings)} found" if look.findings else "nothing found")
    if look.tells_nothing:
        told.append(NO_STEP)
    return f"{duration(view.run_s)} " + " · ".join(told)


def own_numbers(look: Look) -> list[str]:
    """Names of what scripts report, as they are shown: without the prefix."""
    return sorted({metric.removeprefix(USER_PREFIX) for said in look.ranks.values() for metric in said if metric.startswith(USER_PREFIX)})


def step_time(seconds: float) -> str:
    """Steps are often far shorter than what people otherwise wait for."""
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else duration(seconds)
