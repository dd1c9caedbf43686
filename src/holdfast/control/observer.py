"""The observer: turns what agents say many times a second into the few events the core must know.

Readings are not events: they are looked at here and dropped. What comes out is rare: every rank has entered its loop, every rank has finished a step, lost
ground is made good, a checkpoint is complete, a node has fallen silent, a restored checkpoint gives NaN at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.control.standing_still import StandingStill
from holdfast.detect.poisoned import Look, Poisoned
from holdfast.detect.silent_node import Heard, SilentNode
from holdfast.domain.event import CheckpointSaved, Event, FindingMade, GangRestored, NodeSilent, ProgressSeen
from holdfast.domain.job import JobPhase
from holdfast.domain.state import State
from holdfast.wire.messages import Reading, Readings, Staged

PROGRESS_EVERY_S = 10.0
SAVED_EVERY_S = 5.0
VOUCH_AFTER_S = 2.0  # A node that was heard this lately needs nobody to speak for it.


@dataclass(slots=True)
class Observer:
    heard: dict[str, Heard] = field(default_factory=dict)
    ranks: dict[int, Reading] = field(default_factory=dict)
    staged: dict[str, Staged] = field(default_factory=dict)  # By node, where the job has something to stage.
    _silent: SilentNode = field(default_factory=SilentNode)
    _poisoned: Poisoned = field(default_factory=Poisoned)
    _standing_still: StandingStill = field(default_factory=StandingStill)
    _generation: int = -1
    _restored: bool = False
    _ready: bool = False
    _caught_up: bool = False
    _left: bool = False
    _restore_s: float = 0.0
    _saved_step: int = -1
    _saved_told_at: float = 0.0
    _told_at: float = 0.0
    _vouched: dict[str, int] = field(default_factory=dict)  # Node to the step the others were at when they last showed that it lives.
    _told_step: int = -1
    _rate: tuple[float, int] = (0.0, -1)
    steps_per_s: float | None = None  # None until it was measured over a while.

    def connected(self, node: str, now: float) -> None:
        self.heard[node] = Heard(at=now, connected=True)

    def disconnected(self, node: str, now: float) -> None:
        self.heard[node] = Heard(at=now, connected=False)

    def read(self, readings: Readings, state: State, now: float) -> list[Event]:
        """Take one agent's readings; the events that follow from them."""
        self.heard[readings.node] = Heard(at=now, connected=True)
        if readings.staged is not None:
            self.staged[readings.node] = readings.staged
        gang, spec = state.gang, state.spec
        if gang is None or spec is None:
            return []
        if gang.generation != self._generation:
            self._begin(gang.generation)
        for reading in readings.ranks:
            if reading.generation == self._generation:
                self.ranks[reading.rank] = reading
        self._vouch(readings.node, gang.nodes, spec.ranks_per_node, now)
        if state.phase is not JobPhase.RUNNING or len(self.ranks) < state.world_size:
            return []
        return self._progress(state, now)

    def _vouch(self, speaker: str, nodes: tuple[str, ...], ranks_per_node: int, now: float) -> None:
        """Ranks that are two steps ahead of what a quiet node said last could not be there without it; and it lives on with every further step of theirs."""
        for place, node in enumerate(nodes):
            heard = self.heard.get(node)
            if node == speaker or heard is None or now - heard.at <= VOUCH_AFTER_S:
                continue
            own = [self.ranks[rank].step for rank in range(place * ranks_per_node, (place + 1) * ranks_per_node) if rank in self.ranks]
            others = [reading.step for rank, reading in self.ranks.items() if rank // ranks_per_node != place]
            ahead = min(others, default=-1)
            if own and ahead >= max(own) + 2 and ahead > self._vouched.get(node, -1):
                self._vouched[node] = ahead
                self.heard[node] = replace(heard, alive_at=now)

    def _begin(self, generation: int) -> None:
        self._generation, self.ranks, self._poisoned = generation, {}, Poisoned()
        self._restored = self._ready = self._caught_up = self._left = False
        self._told_step = -1
        self._vouched = {}
        self._restore_s, self._saved_step, self._rate, self.steps_per_s = 0.0, -1, (0.0, -1), None

    def _progress(self, state: State, now: float) -> list[Event]:
        events: list[Event] = []
        ranks = self.ranks.values()
        self._restore_s = max([self._restore_s, *(rank.phase_s for rank in ranks if rank.phase == "restore")])
        poison = self._look_for_poison(state, now)
        if not all(rank.restored for rank in ranks):
            return poison
        step, generation = min(rank.step for rank in ranks), self._generation
        save_s = max(rank.save_s for rank in ranks)
        self._measure_rate(step, now)
        if not self._restored:
            self._restored = True
            started = min(rank.step_started for rank in ranks)
            events.append(GangRestored(at=now, generation=generation, step=started, restore_s=self._restore_s, done=max(0, step - started)))
        stepped = all(rank.step > rank.step_started for rank in ranks)
        caught_up = step >= state.step_best
        due = now - self._told_at >= PROGRESS_EVERY_S and step > self._told_step
        left_s = min(rank.phase_s for rank in ranks) if all(rank.phase == "finish" for rank in ranks) else None
        leaves = (left_s is not None) != self._left
        self._left = left_s is not None
        news = not self._ready or (caught_up and not self._caught_up) or due
        if (stepped and news) or (leaves and (stepped or self._ready)):  # A second loop that gives nothing is left without a step.
            self._ready, self._caught_up, self._told_at, self._told_step = True, caught_up, now, step
            rejoins, sharded = all(rank.rejoins for rank in ranks), any(rank.sharded for rank in ranks)
            events.append(ProgressSeen(at=now, generation=generation, step=step, save_s=save_s, rejoins=rejoins, sharded=sharded, left_s=left_s))
        saved = min(rank.saved_step for rank in ranks)
        if saved > self._saved_step and now - self._saved_told_at >= SAVED_EVERY_S:
            self._saved_step, self._saved_told_at = saved, now
            events.append(CheckpointSaved(at=now, generation=generation, step=saved))
        return [*events, *poison]

    def _look_for_poison(self, state: State, now: float) -> list[Event]:
        gang = state.gang
        assert gang is not None
        looks = {number: _look(rank) for number, rank in self.ranks.items()}
        finding = self._poisoned.look(looks, gang.restore or "", gang.restore_step, up_at=gang.started_at, now=now)
        return [FindingMade(at=now, generation=self._generation, finding=finding)] if finding is not None else []

    def _measure_rate(self, step: int, now: float) -> None:
        since, before = self._rate
        if before < 0:
            self._rate = (now, step)
        elif now - since >= 2.0:
            self.steps_per_s = (step - before) / (now - since)
            self._rate = (now, step)

    def look(self, state: State, now: float) -> list[Event]:
        """Says which nodes have fallen silent, and whether the gang still gets further."""
        still = self._standing_still.look(state, self.ranks, self.heard, now) if state.gang is not None and state.gang.generation == self._generation else []
        found = self._silent.look(self.heard, now)
        for finding in found:
            self.heard.pop(finding.node)
        return [*(NodeSilent(at=now, node=finding.node, since=finding.since, because=finding.because) for finding in found), *still]


def _look(rank: Reading) -> Look:
    """Before it has entered its loop a rank has not said where it starts, and has finished nothing."""
    finite = False if "loss" in rank.not_finite else None if rank.loss is None else True
    return Look(step=rank.step, step_started=rank.step_started if rank.restored else rank.step, finite=finite, was_finite=rank.was_finite)
