"""How often to save, while the job runs: what is measured, when it is thought about anew, and from which step on a change counts.

    readings ─► step, stall, durable ─┐
    incidents, ledger ─► failures ────┴─► recover/interval.decide ─► IntervalChosen, when it says something new

The ranks hear of it through the memory of their nodes, each when it comes to look. They must all save the same steps, so a change counts from a step that the
furthest of them reaches only in some seconds; and nothing is changed again before all have got there, nor while a node is out of reach.

Is wrong    on a GPU, where a save costs more than its call took if the optimizer's next step waits for the copy: saves then are more frequent than is best.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.leaving import is_hurried
from holdfast.domain.event import IntervalChosen
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import JobPhase, SaveEvery
from holdfast.domain.state import State
from holdfast.recover.interval import Interval, Measured, decide
from holdfast.wire.messages import Reading

AHEAD_S = 5.0  # By then every worker has heard of it. An agent on a busy machine may need a second or two.
THINK_EVERY_S = 10.0
GOES_SAVE_S = 15.0  # From one save to the next while the gang stands on a node that will go and has nowhere else to be: notices come true early, too.
_SEEN_S_MIN = 2.0  # Less says nothing about the time of a step,
_STEPS_MIN = 3  # nor do fewer steps.
_APART_S = 0.5
_RECENT_S = 60.0
_RECENT_STEPS = 10
_NEAR = 0.1  # A time that was asked for is kept to about this.


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    step: int  # That every rank has finished.
    save_s: float  # By the slowest rank, since it started.


@dataclass(slots=True)
class Intervals:
    durable_s: dict[str, float] = field(default_factory=dict)  # By node, as it last said.
    _generation: int = -1
    _seen: deque[_Seen] = field(default_factory=deque)
    _think_at: float = 0.0
    _goes: bool = False  # A node of the gang will go: as it was last thought about.

    def look(self, state: State, ranks: Mapping[int, Reading], connected: Collection[str], now: float) -> IntervalChosen | None:
        """Take note of how far the ranks are; what was chosen, when that is news."""
        gang, spec = state.gang, state.spec
        if gang is None or spec is None or state.phase is not JobPhase.RUNNING or len(ranks) < state.world_size:
            return None
        if gang.generation != self._generation:
            self._generation, self._think_at = gang.generation, 0.0
            self._seen.clear()
        readings = ranks.values()
        if any(one.generation != gang.generation or one.step <= one.step_started for one in readings):
            return None  # The first step of a process is longer than others.
        self._note(_Seen(now, min(one.step for one in readings), max(one.save_s for one in readings)))
        step_s = self._step_s()
        if step_s is None or (now < self._think_at and is_hurried(state) == self._goes) or not set(gang.nodes) <= set(connected):
            return None
        self._think_at, self._goes = now + THINK_EVERY_S, is_hurried(state)
        return self._think(state, readings, step_s, now)

    # What is measured.

    def _note(self, seen: _Seen) -> None:
        """Keep enough of the past, and no more: a step may take a millisecond or a minute."""
        past = self._seen
        if past and (seen.step == past[-1].step or seen.at - past[-1].at < _APART_S):
            return
        past.append(seen)
        while len(past) > 2 and seen.at - past[1].at >= _RECENT_S and seen.step - past[1].step >= _RECENT_STEPS:
            past.popleft()

    def _step_s(self) -> float | None:
        """What a step takes, saves left out. None: it is too early to say."""
        if len(self._seen) < 2:
            return None
        first, last = self._seen[0], self._seen[-1]
        if last.at - first.at < _SEEN_S_MIN or last.step - first.step < _STEPS_MIN:
            return None
        spent_s = last.at - first.at
        return max(spent_s - (last.save_s - first.save_s), 0.01 * spent_s) / (last.step - first.step)

    def _measured(self, state: State, readings: Iterable[Reading], step_s: float, now: float) -> Measured:
        assert state.spec is not None and state.gang is not None
        seen = failures_of(state, now)
        return Measured(
            step_s=step_s, nodes=len(state.gang.nodes), failures=seen.count, node_h=state.spec.nodes * seen.watched_s / 3600.0,
            stall_s=_stall_s(state, readings), restart_s=seen.restart_s,
            durable_s=max((self.durable_s.get(node, 0.0) for node in state.gang.nodes), default=0.0),
        )  # fmt: skip

    # What is made of it.

    def _think(self, state: State, readings: Collection[Reading], step_s: float, now: float) -> IntervalChosen | None:
        assert state.spec is not None
        asked, before, used = state.spec.save_every, state.interval, {one.save_every for one in readings}
        automatic = all(one.follows for one in readings) and (asked is None or asked.steps is None)
        if len(used) > 1 or min(used) <= 0:
            return None  # A change is just being made; or saves come only when they are asked for.
        every = used.pop()
        if automatic and before is not None and before.generation == self._generation and before.every != every:
            return None  # A change is on its way.
        measured = self._measured(state, readings, step_s, now)
        found = _decide(measured, every, asked, automatic=automatic)
        if automatic and self._goes:
            often = max(1, round(GOES_SAVE_S / step_s))
            found = found if found.every <= often else replace(decide(measured, given=often), because=f"{state.draining[0]} will go, and may go early")
        rests_on = measured.failures, measured.stall_s is None
        if before is not None and (before.every, before.automatic, before.failures, before.stall_s is None) == (found.every, automatic, *rests_on):
            return None
        return IntervalChosen(
            at=now, generation=self._generation, every=found.every, from_step=self._from_step(readings, step_s), automatic=automatic, because=found.because,
            interval_s=found.interval_s, overhead=found.overhead, goodput=found.goodput, cheapest=found.cheapest, step_s=step_s, failures=measured.failures,
            stall_s=measured.stall_s,
        )  # fmt: skip

    def _from_step(self, readings: Iterable[Reading], step_s: float) -> int:
        """Steps may have become faster lately: the faster counts."""
        before, last = self._seen[-2], self._seen[-1]
        rate = max(1.0 / step_s, (last.step - before.step) / (last.at - before.at))
        return max(one.step for one in readings) + 1 + math.ceil(AHEAD_S * rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresSeen:
    """Of one job, the times nobody ran it left out."""

    count: int  # Those that lost work.
    watched_s: float
    restart_s: float  # In the mean, from the failure to the first new step, the work done again left out. 0: none has ended.


def failures_of(state: State, now: float) -> FailuresSeen:
    ledger = state.ledger.up_to(now)
    failed = [incident for incident in state.incidents if incident.step_before >= 0]
    lost_work = [incident for incident in failed if incident.is_open or incident.step_after < incident.step_before]  # Survivors that went on lost none.
    after = (Bucket.RECOMPUTE, Bucket.SMALLER)
    bills = [sum(seconds for bucket, seconds in incident.costs.items() if bucket not in after) for incident in failed if not incident.is_open]
    return FailuresSeen(count=len(lost_work), watched_s=ledger.run_s, restart_s=sum(bills) / len(bills) if bills else 0.0)


def _decide(measured: Measured, every: int, asked: SaveEvery | None, *, automatic: bool) -> Interval:
    if not automatic:
        return decide(measured, given=every)
    if asked is not None and asked.seconds is not None:
        steps = max(1, round(asked.seconds / measured.step_s))
        found = decide(measured, given=every if abs(steps - every) <= _NEAR * steps else steps)
        return replace(found, because=f"{found.because}; {asked.seconds:g} s were asked for")
    return decide(measured, before=every)


def _stall_s(state: State, readings: Iterable[Reading]) -> float | None:
    """The slowest rank holds up all. Until one has saved, what earlier processes of this job needed."""
    found = [one.stall_s for one in readings if one.stall_s is not None]
    return max(found) if found else state.interval.stall_s if state.interval is not None else None
