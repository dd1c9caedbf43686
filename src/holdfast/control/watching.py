"""Watching: every signal of the job, once a second, through the rules and the detectors that need more than one rank or node.

    agents ─► take ─► rings ─► rules ───────┐
                  └─► newest of each rank ─► detectors ─► what stands now ─► FindingMade, FindingEnded, when that changes

What is only worth knowing is shown and told to nobody, unless it explains something that is told. Nothing here is journalled but the findings. A control that
is restarted learns anew what is usual; what was found is found again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Protocol

import numpy as np

from holdfast.control.heard import FRESH_S, PARTS, Heard, Row
from holdfast.control.numbers import JobNumbers
from holdfast.control.pacing import Pacing
from holdfast.detect.flapping import Flapping
from holdfast.detect.gap import Gap
from holdfast.detect.gradient import Gradient
from holdfast.detect.loss import LossJump
from holdfast.detect.not_finite import NotFinite
from holdfast.detect.plateau import Plateau
from holdfast.detect.replicas import Replicas
from holdfast.detect.rules.evaluate import Evaluator
from holdfast.detect.rules.rule import Rule
from holdfast.detect.running_out import Left, RunningOut
from holdfast.detect.series import Rings
from holdfast.detect.slow_job import SlowJob
from holdfast.detect.slow_rank import SlowRank
from holdfast.detect.throttled import Throttled
from holdfast.diagnose.together import SLOW, tells_of
from holdfast.domain.event import Event, FindingEnded, FindingMade
from holdfast.domain.finding import SAVES, Finding, Severity
from holdfast.domain.job import JobPhase, Target
from holdfast.domain.signal import Signal
from holdfast.domain.state import NodeState, State
from holdfast.wire.messages import Signals

LOOK_EVERY_S = 1.0
_GROWTH_LOOKS = 45
_SETTLED_LOOKS = 10  # Of a new generation, before what was said of the loss of the one before is said again: it may have gone back to before that.


class Detector(Protocol):
    @property
    def standing(self) -> list[Finding]: ...


@dataclass(slots=True)
class _Generation:
    """What is learned of one generation and means nothing in the next."""

    number: int
    since: float  # What was said before is of another one.
    ranks: int
    slow_rank: SlowRank = field(init=False)
    slow_job: SlowJob = field(default_factory=SlowJob)
    not_finite: NotFinite = field(default_factory=NotFinite)
    replicas: Replicas = field(default_factory=Replicas)
    steps: Row = field(default_factory=lambda: np.empty(0))  # As they were at the last look: where nobody moved there is nothing new to judge.
    memory: Row = field(init=False)  # Of each rank at the last looks, in a ring.
    looks: int = 0
    moved: int = 0  # Looks at which steps had been done.

    def __post_init__(self) -> None:
        self.slow_rank = SlowRank(ranks=self.ranks)
        self.memory = np.full((_GROWTH_LOOKS, self.ranks), nan)

    @property
    def detectors(self) -> tuple[Detector, ...]:
        return (self.slow_rank, self.slow_job, self.not_finite, self.replicas)


class Watching:
    def __init__(self, rules: Iterable[Rule], *, job: str = "") -> None:
        self.rings = Rings()
        self._rules = Evaluator([rule for rule in rules if not rule.left_to], self.rings, job=job)
        self._by_rule: dict[str, Finding] = {}
        self._heard = Heard()
        self._known: set[str] = set()  # The nodes whose series are in the rings.
        self._generation: _Generation | None = None
        self._loss = LossJump()
        self._gradient = Gradient()
        self._plateau = Plateau()
        self._gap = Gap()
        self._pacing = Pacing()
        self._running_out = RunningOut()
        self._numbers = JobNumbers()
        self._throttled = Throttled()
        self._flapping = Flapping()
        self._told: dict[str, Finding] = {}
        self._looked_at = 0.0
        self.standing: tuple[Finding, ...] = ()  # All that is so now, also what is only worth knowing.

    def take(self, message: Signals, now: float, *, wall: float = nan) -> None:
        """`wall` is control's own wall clock, which is `now` but for what it was adjusted by since control started."""
        back = message.node in self._known and message.node not in self._heard
        said = self._heard.take(message, now)
        if said is None:
            return
        if back:
            self._flapping.came_back(message.node, now)
        self._known.add(message.node)
        if message.wall_s and isfinite(wall):
            said.append(Signal("host_clock_difference_seconds", message.wall_s - wall))
        self.rings.take(message.node, said, at=now, now=now)

    def gone(self, node: str) -> None:
        self._heard.gone(node)

    def ahead_s(self, node: str) -> float:
        """How far the node's wall clock is ahead of ours."""
        return self._heard.ahead_s(node)

    def speaking(self, now: float, within_s: float = FRESH_S) -> list[str]:
        """The nodes that were heard of late."""
        return self._heard.speaking(now, within_s)

    def look(self, state: State, job: Iterable[Signal], now: float, *, at_once: bool = False) -> list[Event]:
        """What has changed. `job` are the signals of the job as a whole."""
        if now - self._looked_at < LOOK_EVERY_S and not at_once:
            return []
        self._looked_at = now
        self._forget_the_lost(state)
        of_job = list(job)
        self.rings.take("", of_job, at=now, now=now)
        self._look_with_rules(now)
        gang, spec = state.gang, state.spec
        if gang is None or spec is None or state.phase is not JobPhase.RUNNING or not gang.ready:
            return []
        if self._generation is None or self._generation.number != gang.generation:
            self._generation = _Generation(number=gang.generation, since=gang.started_at, ranks=state.world_size)
            lasting = {key: finding for key, finding in self._told.items() if finding.is_of_rule}  # Its incident lasts on.
            self._told = lasting | _told_of_saves(state)
            self._flapping.gang_is_new()
        nodes = [gang.nodes[rank // spec.ranks_per_node] for rank in range(state.world_size)]
        rows = self._heard.of_ranks(gang.nodes, len(nodes), now, after=self._generation.since)
        progress = next((signal.value for signal in of_job if signal.metric == "job_progress_ratio"), nan)
        moved = self._look_at_ranks(self._generation, rows, nodes, now)
        target = spec.limits.target if spec.limits is not None else None
        if moved:
            self._generation.moved += 1
            self._look_at_training(rows, target, progress, now)
        self._pacing.look(state, rows, moved=moved, progress=progress, target=_number(rows, target), now=now)
        self._look_at_what_is_left(self._generation, rows, nodes, now)
        return self._changes(self._found(nodes, now), gang.generation, now)

    def _found(self, nodes: list[str], now: float) -> dict[str, Finding]:
        """All that is so now, of which what is worth telling is returned."""
        assert self._generation is not None
        training = (self._loss, self._gradient, self._plateau, self._gap) if self._generation.moved >= _SETTLED_LOOKS else ()
        detectors: tuple[Detector, ...] = (*self._generation.detectors, *training, self._pacing, self._running_out, self._numbers)
        by_rule = [finding for finding in self._by_rule.values() if _is_where_it_was(finding, nodes)]
        found = [*self._heard.findings(), *by_rule, *(finding for detector in detectors for finding in detector.standing)]
        self._throttled.look([finding for finding in found if finding.kind in SLOW], self.rings, nodes, now)
        by_key = {finding.key: finding for finding in self._throttled.standing}
        by_key |= {finding.key: finding for finding in found}  # A rule that says the same says it louder.
        loud = {key: finding for key, finding in by_key.items() if finding.severity is not Severity.INFO}
        self._flapping.look(loud, now)
        told = {key: finding for key, finding in loud.items() if not self._flapping.is_told(key)}
        told |= {finding.key: finding for finding in self._flapping.standing}
        told |= _explaining([finding for key, finding in by_key.items() if key not in loud], told)
        self.standing = (*by_key.values(), *self._flapping.standing)
        return told

    def _changes(self, current: dict[str, Finding], generation: int, now: float) -> list[Event]:
        # Whether saves fail is known by the node alone: one that is not heard has not said that they work again.
        unheard = {key: finding for key, finding in self._told.items() if finding.kind in SAVES and finding.node and finding.node not in self._heard}
        current = unheard | current
        made = [FindingMade(at=now, generation=generation, finding=finding) for key, finding in current.items() if key not in self._told]
        over = [
            FindingEnded(at=now, generation=generation, key=key, because=self._heard.ended(key) or f"no longer so: {finding.because}")
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

    def _look_at_ranks(self, generation: _Generation, rows: Mapping[str, Row], nodes: list[str], now: float) -> bool:
        """Whether any rank has moved since the last look; without a word of one of them, nothing is judged."""
        steps = rows["step"]
        if not np.isfinite(steps).all():
            return False
        generation.not_finite.look(_known(rows["not_finite_since_step"]), _known(steps), nodes, now, _known(rows["finite_until_step"]))
        digests, of_steps = _known(rows["parameter_digest"]), _known(rows["parameter_digest_step"])
        generation.replicas.look({rank: (of_steps[rank], digest) for rank, digest in digests.items() if rank in of_steps}, now)
        if np.array_equal(steps, generation.steps):
            return False
        generation.steps = steps
        self._look_at_pace(generation, rows, nodes, now)
        self._numbers.look(rows, now)
        return True

    def _look_at_pace(self, generation: _Generation, rows: Mapping[str, Row], nodes: list[str], now: float) -> None:
        parts = {name: rows[f"step_{name}_seconds"] for name in PARTS}
        step_s, communication_s = rows["step_seconds"], rows["step_communication_seconds"]
        generation.slow_rank.look(step_s, communication_s, parts, nodes, now)
        if np.isfinite(step_s).any():
            # A slow rank makes the others wait: only what the rank that waits least waits is the network's.
            of_job = {"data": _middle(parts["data"]), "save": _middle(parts["save"]), "communication": _least(communication_s)}
            generation.slow_job.look(_middle(step_s), {name: seconds for name, seconds in of_job.items() if isfinite(seconds)}, now)

    def _look_at_training(self, rows: Mapping[str, Row], target: Target | None, progress: float, now: float) -> None:
        loss, norm, rate = _mean(rows["loss"]), _mean(rows["gradient_norm"]), _middle(rows["learning_rate"])
        if isfinite(loss):
            self._loss.look(loss, rate, now, int(_least(rows["step"])))
        if isfinite(norm):
            self._gradient.look(norm, now)
        if target is not None and self._plateau.target != target:
            self._plateau = Plateau(target=target, name=target.metric)
        self._plateau.look(loss if target is None else _number(rows, target), rate, progress, now)
        self._gap.look(loss, _first(rows["validation_loss"]), now)

    def _look_at_what_is_left(self, generation: _Generation, rows: Mapping[str, Row], nodes: list[str], now: float) -> None:
        generation.memory[generation.looks % _GROWTH_LOOKS] = rows["worker_memory_bytes"]
        generation.looks += 1
        grown = self._grown(generation)
        ranks_of: dict[str, list[int]] = {}
        for rank, node in enumerate(nodes):
            ranks_of.setdefault(node, []).append(rank)
        things: list[Left] = []
        for node, ranks in sorted(ranks_of.items()):
            said = self._heard.of_node(node, now, after=generation.since)
            size = said.get(("host_memory_bytes", ""), nan)
            if isfinite(left := said.get(("host_memory_available_bytes", ""), nan)) and isfinite(size):
                growing, who = self._growing(grown, ranks, generation.looks)
                things.append(Left(kind="memory", name=f"memory of {node}", left=left, size=size, node=node, who=who, ranks=growing))
            for (metric, of), left in said.items():
                size = said.get(("disk_size_bytes", of), nan)
                if metric == "disk_free_bytes" and isfinite(left) and isfinite(size):
                    things.append(Left(kind="disk", name=f"space of {of} on {node}", left=left, size=size, node=node, of=of))
        self._running_out.look(things, now)

    def _grown(self, generation: _Generation) -> list[float]:
        """How much the memory of each rank grew over the last looks at which it was known."""
        seen = min(generation.looks, _GROWTH_LOOKS)
        ring = np.roll(generation.memory, -generation.looks, axis=0)[-seen:]
        first = np.isfinite(ring).argmax(axis=0)
        grown: list[float] = np.nan_to_num(np.maximum(ring[-1] - ring[first, np.arange(ring.shape[1])], 0.0)).tolist()
        return grown

    def _growing(self, grown: list[float], ranks: list[int], looks: int) -> tuple[tuple[int, ...], str]:
        """The rank whose memory grew most of late, if it is one."""
        most = max(ranks, key=lambda rank: grown[rank])
        if grown[most] < 2**24 or grown[most] <= 0.5 * sum(grown[rank] for rank in ranks):
            return (), ""
        return (most,), f"rank {most} has grown by {grown[most] / 2**20:.0f} MiB in the last {min(looks, _GROWTH_LOOKS)} s"


def _told_of_saves(state: State) -> dict[str, Finding]:
    """What a control before this one has told of saves, and that has not ended as far as it knew. Agents say whether it is still so, and how it ended."""
    standing = [incident for incident in state.incidents if incident.is_open and incident.stands]
    told = [finding for incident in standing for finding in incident.findings if finding.key not in incident.ended]
    return {finding.key: finding for finding in told if finding.kind in SAVES}


def _explaining(quiet: Iterable[Finding], told: Mapping[str, Finding]) -> dict[str, Finding]:
    """Of what is only worth knowing, what says something about what is told. What is about a node is only asked of that node and of the whole job."""
    by_node: dict[str, list[Finding]] = {}
    for finding in told.values():
        by_node.setdefault(finding.node, []).append(finding)
    found = {}
    for finding in quiet:
        others = [*by_node.get(finding.node, ()), *by_node.get("", ())] if finding.node else told.values()
        if any(tells_of(finding, other) for other in others):
            found[finding.key] = finding
    return found


def _is_where_it_was(finding: Finding, nodes: list[str]) -> bool:
    """Whether the gang has the rank that a rule speaks of on the node whose series it has looked at."""
    return all(rank < len(nodes) and finding.node in ("", nodes[rank]) for rank in finding.ranks)


def _known(row: Row) -> dict[int, int]:
    """Rank to a whole number, where there is one."""
    some = np.flatnonzero(np.isfinite(row))
    return dict(zip(some.tolist(), row[some].astype(np.int64).tolist(), strict=True))


def _number(rows: Mapping[str, Row], target: Target | None) -> float:
    """The number a job has a target for; NaN when nobody says it."""
    return _mean(rows[target.metric]) if target is not None and target.metric in rows else nan


def _mean(row: Row) -> float:
    known = row[np.isfinite(row)]
    return float(known.mean()) if len(known) else nan


def _middle(row: Row) -> float:
    known = row[np.isfinite(row)]
    return float(np.median(known)) if len(known) else nan


def _least(row: Row) -> float:
    return float(np.nanmin(row)) if np.isfinite(row).any() else nan


def _first(row: Row) -> float:
    """Of the first rank that says it: of several, each is a moment later than the one before."""
    known = row[np.isfinite(row)]
    return float(known[0]) if len(known) else nan
