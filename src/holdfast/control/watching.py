"""Watching: every signal of the job, once a second, through the rules and the detectors that need more than one rank or node.

    agents ─► take ─► rings ─► rules ───────┐
                  └─► newest of each rank ─► detectors ─► what stands now ─► FindingMade, FindingEnded, when that changes

Nothing here is journalled but the findings. A control that is restarted learns anew what is usual; what was found is found again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.control.numbers import JobNumbers
from holdfast.detect.gradient import Gradient
from holdfast.detect.loss import LossJump
from holdfast.detect.not_finite import NotFinite
from holdfast.detect.replicas import Replicas
from holdfast.detect.rules.evaluate import Evaluator
from holdfast.detect.rules.rule import Rule
from holdfast.detect.running_out import Left, RunningOut
from holdfast.detect.series import Rings
from holdfast.detect.slow_job import SlowJob
from holdfast.detect.slow_rank import SlowRank
from holdfast.domain.event import Event, FindingEnded, FindingMade
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.job import JobPhase
from holdfast.domain.signal import Signal
from holdfast.domain.state import NodeState, State
from holdfast.wire.messages import Signals

LOOK_EVERY_S = 1.0
FRESH_S = 3.0  # What an agent said longer ago than this says nothing about now.
_PARTS = ("data", "compute", "optimizer", "save")
_ROWS = ("step_seconds", "step_communication_seconds", *(f"step_{part}_seconds" for part in _PARTS), "loss", "gradient_norm", "learning_rate")
_GROWTH_LOOKS = 45

Row = NDArray[np.float64]  # One number for each rank; NaN where there is none.


class Detector(Protocol):
    @property
    def standing(self) -> list[Finding]: ...


@dataclass(slots=True)
class _Heard:
    """The newest row of a node."""

    columns: tuple[tuple[str, str], ...]
    values: tuple[float | None, ...] = ()
    at: float = 0.0
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class _Generation:
    """What is learned of one generation and means nothing in the next."""

    number: int
    since: float  # What was said before is of another one.
    slow_rank: SlowRank
    slow_job: SlowJob = field(default_factory=SlowJob)
    not_finite: NotFinite = field(default_factory=NotFinite)
    replicas: Replicas = field(default_factory=Replicas)
    steps: dict[int, int] = field(default_factory=dict)  # As they were at the last look: where nobody moved there is nothing new to judge.
    memory: dict[int, deque[float]] = field(default_factory=dict)

    @property
    def detectors(self) -> tuple[Detector, ...]:
        return (self.slow_rank, self.slow_job, self.not_finite, self.replicas)


class Watching:
    def __init__(self, rules: Iterable[Rule], *, job: str = "") -> None:
        self.rings = Rings()
        self._rules = Evaluator([rule for rule in rules if not rule.left_to], self.rings, job=job)
        self._by_rule: dict[str, Finding] = {}
        self._heard: dict[str, _Heard] = {}
        self._known: set[str] = set()  # The nodes whose series are in the rings.
        self._generation: _Generation | None = None
        self._loss = LossJump()
        self._gradient = Gradient()
        self._running_out = RunningOut()
        self._numbers = JobNumbers()
        self._told: dict[str, Finding] = {}
        self._looked_at = 0.0
        self.standing: tuple[Finding, ...] = ()  # All that is so now, also what is only worth knowing.

    def take(self, message: Signals, now: float) -> None:
        heard = self._heard.get(message.node)
        if message.columns is not None:
            heard = self._heard[message.node] = _Heard(columns=message.columns)
        if heard is None or len(heard.columns) != len(message.values):
            return  # We were restarted and have not been told yet what the values are of.
        self._known.add(message.node)
        heard.values, heard.at, heard.findings = message.values, now, message.findings
        pairs = zip(heard.columns, message.values, strict=True)
        self.rings.take(message.node, [Signal(metric, value, of) for (metric, of), value in pairs if value is not None], at=now, now=now)

    def gone(self, node: str) -> None:
        self._heard.pop(node, None)

    def speaking(self, now: float, within_s: float = FRESH_S) -> list[str]:
        """The nodes that were heard of late."""
        return sorted(node for node, heard in self._heard.items() if now - heard.at <= within_s)

    def look(self, state: State, job: Iterable[Signal], now: float) -> list[Event]:
        """What has changed. `job` are the signals of the job as a whole."""
        if now - self._looked_at < LOOK_EVERY_S:
            return []
        self._looked_at = now
        self._forget_the_lost(state)
        self.rings.take("", list(job), at=now, now=now)
        self._look_with_rules(now)
        gang, spec = state.gang, state.spec
        if gang is None or spec is None or state.phase is not JobPhase.RUNNING or not gang.ready:
            return []
        if self._generation is None or self._generation.number != gang.generation:
            self._generation = _Generation(number=gang.generation, since=now, slow_rank=SlowRank(ranks=spec.world_size))
            self._told = {}
        nodes = [gang.nodes[rank // spec.ranks_per_node] for rank in range(spec.world_size)]
        self._look_at_ranks(self._generation, nodes, now)
        self._look_at_what_is_left(self._generation, nodes, now)
        detectors = (*self._generation.detectors, self._loss, self._gradient, self._running_out, self._numbers)
        measuring = [finding for heard in self._heard.values() for finding in heard.findings]
        found = [*measuring, *self._by_rule.values(), *(finding for detector in detectors for finding in detector.standing)]
        self.standing = tuple(found)
        return self._changes({finding.key: finding for finding in found if finding.severity is not Severity.INFO}, gang.generation, now)

    def _changes(self, current: dict[str, Finding], generation: int, now: float) -> list[Event]:
        made = [FindingMade(at=now, generation=generation, finding=finding) for key, finding in current.items() if key not in self._told]
        over = [
            FindingEnded(at=now, generation=generation, key=key, because=f"no longer so: {finding.because}")
            for key, finding in self._told.items() if key not in current
        ]  # fmt: skip
        self._told = current
        return [*made, *over]

    def _forget_the_lost(self, state: State) -> None:
        """A node that is not counted on any more is not missed either: that it is lost was said when it was."""
        lost = {name for name, node in state.nodes.items() if node.state in (NodeState.LOST, NodeState.GIVEN_UP)}
        for node in self._known & lost:
            self.rings.forget(node)
            self._known.discard(node)

    def _look_with_rules(self, now: float) -> None:
        looked = self._rules.look(now)
        for ended in looked.ended:
            self._by_rule.pop(ended.key, None)
        for finding in looked.started:
            self._by_rule[finding.key] = finding

    def _look_at_ranks(self, generation: _Generation, nodes: list[str], now: float) -> None:
        said = self._newest(set(nodes), now, after=generation.since)
        ranks = range(len(nodes))
        steps = {rank: int(said["step", str(rank)]) for rank in ranks if ("step", str(rank)) in said}
        if len(steps) < len(nodes):
            return
        since = {rank: int(said["not_finite_since_step", str(rank)]) for rank in ranks if ("not_finite_since_step", str(rank)) in said}
        generation.not_finite.look(since, steps, nodes, now)
        digests = {rank: (int(said["parameter_digest_step", str(rank)]), int(said["parameter_digest", str(rank)])) for rank in ranks
                   if {("parameter_digest", str(rank)), ("parameter_digest_step", str(rank))} <= said.keys()}  # fmt: skip
        generation.replicas.look(digests, now)
        if steps != generation.steps:
            generation.steps = steps
            rows = {metric: np.array([said.get((metric, str(rank)), nan) for rank in ranks]) for metric in _ROWS}
            self._look_at_pace(generation, rows, nodes, now)
            self._look_at_training(rows, now)
            self._numbers.look(said, now)

    def _look_at_pace(self, generation: _Generation, rows: dict[str, Row], nodes: list[str], now: float) -> None:
        parts = {name: rows[f"step_{name}_seconds"] for name in _PARTS}
        step_s, communication_s = rows["step_seconds"], rows["step_communication_seconds"]
        generation.slow_rank.look(step_s, communication_s, parts, nodes, now)
        if np.isfinite(step_s).any():
            # A slow rank makes the others wait: only what the rank that waits least waits is the network's.
            of_job = {"data": _middle(parts["data"]), "save": _middle(parts["save"]), "communication": _least(communication_s)}
            generation.slow_job.look(_middle(step_s), {name: seconds for name, seconds in of_job.items() if isfinite(seconds)}, now)

    def _look_at_training(self, rows: dict[str, Row], now: float) -> None:
        loss, norm = rows["loss"], rows["gradient_norm"]
        if np.isfinite(loss).any():
            self._loss.look(float(np.nanmean(loss)), _middle(rows["learning_rate"]), now)
        if np.isfinite(norm).any():
            self._gradient.look(float(np.nanmean(norm)), now)

    def _look_at_what_is_left(self, generation: _Generation, nodes: list[str], now: float) -> None:
        things: list[Left] = []
        for node in sorted(set(nodes)):
            said = self._newest({node}, now, after=generation.since)
            growing, who = self._growing(generation, [rank for rank, place in enumerate(nodes) if place == node], said)
            size = said.get(("host_memory_bytes", ""), nan)
            if isfinite(left := said.get(("host_memory_available_bytes", ""), nan)) and isfinite(size):
                things.append(Left(kind="memory", name=f"memory of {node}", left=left, size=size, node=node, who=who, ranks=growing))
            for (metric, of), left in said.items():
                size = said.get(("disk_size_bytes", of), nan)
                if metric == "disk_free_bytes" and isfinite(size):
                    things.append(Left(kind="disk", name=f"space of {of} on {node}", left=left, size=size, node=node, of=of))
        self._running_out.look(things, now)

    def _growing(self, generation: _Generation, ranks: list[int], said: Mapping[tuple[str, str], float]) -> tuple[tuple[int, ...], str]:
        """The rank whose memory grew most of late, if it is one."""
        for rank in ranks:
            if ("worker_memory_bytes", str(rank)) in said:
                generation.memory.setdefault(rank, deque(maxlen=_GROWTH_LOOKS)).append(said["worker_memory_bytes", str(rank)])
        grown = {rank: seen[-1] - seen[0] for rank in ranks if (seen := generation.memory.get(rank))}
        most = max(grown, key=lambda rank: grown[rank], default=None)
        if most is None or grown[most] <= 0.5 * sum(max(0.0, bytes) for bytes in grown.values()) or grown[most] < 2**24:
            return (), ""
        return (most,), f"rank {most} has grown by {grown[most] / 2**20:.0f} MiB in the last {len(generation.memory[most])} s"

    def _newest(self, nodes: set[str], now: float, *, after: float) -> dict[tuple[str, str], float]:
        """The newest values of these nodes. A rank is on one of them, so names do not clash but for the nodes' own, which are asked for one by one."""
        fresh = [heard for node, heard in self._heard.items() if node in nodes and now - heard.at <= FRESH_S and heard.at > after]
        return {name: value for heard in fresh for name, value in zip(heard.columns, heard.values, strict=True) if value is not None}


def _middle(row: Row) -> float:
    return float(np.nanmedian(row)) if np.isfinite(row).any() else nan


def _least(row: Row) -> float:
    return float(np.nanmin(row)) if np.isfinite(row).any() else nan
