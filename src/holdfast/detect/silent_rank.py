"""Silent rank: a rank that used to make progress and no longer does.

Sees        the beat of each rank of a node, its process state, the CPU time of its tree, and whether its stack moved.
Says        `stopped_rank` for a process that is stopped (SIGSTOP, frozen); `silent_rank` for one that is up and gets nowhere.
Is silent   about the progress of a script without our lines, which does not beat: that it is stopped is seen all the same.
Is wrong    when a legal pause is longer than the longest one seen by `factor` and the process sleeps through it: name such phases
            (`with run.phase("eval")`), they have limits of their own. A phase not seen before has `first_s`. And when a rank of another
            node works while those of this one wait for it: this node cannot know.
Costs       one pass over the node's ranks per look; memory is one small window per phase.

One sign is never enough. Silence beyond the learned limit says that something may be wrong; the second, independent sign says that it is:
the kernel calls the process stopped, or its whole tree uses no CPU, or the same stack is seen again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.domain.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One rank, seen from outside at one moment. Times are seconds on one clock."""

    pid: int  # Another process under the same rank is judged anew, and the gap between the two is nobody's step;
    generation: int = 0  # and so is the same one in another gang.
    left: bool = False  # It has left a broken gang: how long it waited there is no measure of what is usual.
    step: int
    phase: str  # Empty: it has not beaten yet, or never will.
    phase_since: float
    beat_at: float
    process_state: str  # As in /proc: R, S, D, T, t, Z.
    cpu_s: float  # Of the worker and all its children, so that busy data-loader workers count as life.
    steps: int = 0  # Finished by this process,
    started_at: float = 0.0  # since it was started.
    stack: str = ""  # Filled only while the rank is suspected; empty means not sampled.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    factor: float = 3.0
    floor_s: float = 20.0  # Steps shorter than a third of this are not judged more tightly: a file server may take that long to answer.
    first_s: float = 1800.0  # For a phase never seen to end: the first step compiles, the first evaluation loads data.
    few_s: float = 60.0  # For one seen to end less often than this:
    known_after: int = 4
    stopped_s: float = 3.0  # A stopped process is not working, whatever its phase.
    idle_cpu_share: float = 0.02  # Of one core, over the time it has been suspected.
    again_s: float = 60.0  # A rank that stays silent is told again: whoever had an excuse for it may not have it any longer.
    sign_s: float = 3.0  # How long the second sign must last.


@dataclass(slots=True)
class _Rank:
    pid: int = 0
    generation: int = 0
    step: int = -1
    phase: str = ""
    phase_since: float = 0.0
    moved_at: float = 0.0  # The last time the beat changed.
    beat_at: float = -1.0
    looked_at: float = 0.0
    cpu_s: float = 0.0
    worked_at: float = 0.0  # The last look that found its processes using CPU.
    stopped_at: float | None = None
    suspected_at: float | None = None
    suspected_cpu_s: float = 0.0
    suspected_stack: str = ""
    stack_moved: bool = False
    told_at: float | None = None


@dataclass(slots=True)
class SilentRank:
    """Looks at the ranks of one node; learns how long each phase takes from those that ended."""

    limits: Limits = Limits()
    window: int = 512
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _durations: dict[str, deque[float]] = field(default_factory=dict)

    def look(self, looks: Mapping[int, Look], now: float) -> tuple[Finding, ...]:
        for gone in self._ranks.keys() - looks.keys():
            del self._ranks[gone]
        found = [finding for rank in sorted(looks) if (finding := self._look(rank, looks[rank], now)) is not None]
        told = tuple(finding for finding in found if finding.kind == "stopped_rank" or not self._waits_for_another(finding.ranks[0], now))
        for finding in told:
            self._ranks[finding.ranks[0]].told_at = now
        return told

    def limit_s(self, phase: str) -> float:
        """How long `phase` may last: the slowest one in a hundred, times a factor; the less often it was seen to end, the more generous."""
        seen = self._durations.get(phase)
        if not seen:
            return self.limits.first_s
        if len(seen) < self.limits.known_after:
            return max(self.limits.few_s, 10 * max(seen))
        ordered = sorted(seen)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        return max(self.limits.floor_s, self.limits.factor * p99 - 2 * self.limits.sign_s)  # The second sign is looked for within the time, not after it.

    def learned(self) -> dict[str, list[float]]:
        """How long phases took, for a detector that takes over from this one."""
        return {phase: list(seen) for phase, seen in sorted(self._durations.items())}

    def learn(self, learned: Mapping[str, Sequence[float]]) -> None:
        for phase, seen in learned.items():
            self._durations.setdefault(phase, deque(maxlen=self.window)).extend(seen)

    def suspects(self) -> tuple[int, ...]:
        """Ranks beyond their limit, whose stacks are worth sampling."""
        return tuple(sorted(rank for rank, state in self._ranks.items() if state.suspected_at is not None and state.told_at is None))

    def _look(self, rank: int, look: Look, now: float) -> Finding | None:
        known = self._ranks.get(rank)
        if known is None or (known.pid, known.generation) != (look.pid, look.generation) or (look.phase and not known.phase):
            self._ranks[rank] = _Rank(
                pid=look.pid, generation=look.generation, step=look.step, phase=look.phase, phase_since=look.phase_since, moved_at=now,
                beat_at=look.beat_at, looked_at=now, cpu_s=look.cpu_s,
            )  # fmt: skip
            if look.steps > 0 and look.phase == "step":
                # All it did so far, its start included: too long for a step, and a limit all the same, should it never take another.
                self._note("step", (look.beat_at - look.started_at) / look.steps, times=look.steps)
                # Its start was over before anybody looked, and took no longer than this. Else the next one, should it hang, had the time of one that compiles.
                if "start" not in self._durations:
                    self._note("start", look.phase_since - look.started_at)
        state = self._ranks[rank]
        if look.cpu_s - state.cpu_s > self.limits.idle_cpu_share * (now - state.looked_at):
            state.worked_at = now
        state.cpu_s, state.looked_at = look.cpu_s, now
        self._learn(state, look, now)
        state.stopped_at = (state.stopped_at or now) if look.process_state == "T" else None
        if state.told_at is not None and now - state.told_at < self.limits.again_s:
            return None
        return self._stopped(rank, state, look, now) or (self._silent(rank, state, look, now) if look.phase else None)

    def _waits_for_another(self, rank: int, now: float) -> bool:
        """Whether a rank that is no further works at something else within its time: rank 0 evaluates or saves alone, and all others wait for it."""
        waiting = self._ranks[rank]
        return any(
            other.phase not in ("", waiting.phase) and other.step <= waiting.step and now - other.moved_at < self.limit_s(other.phase)
            and now - other.worked_at <= self.limits.sign_s
            for other in self._ranks.values()
        )  # fmt: skip

    def _learn(self, state: _Rank, look: Look, now: float) -> None:
        if look.beat_at == state.beat_at:
            return
        if not look.left and look.phase != state.phase:
            self._note(state.phase, look.phase_since - state.phase_since)
        elif not look.left and look.step > state.step:
            self._note(state.phase, (look.beat_at - state.beat_at) / (look.step - state.step), times=look.step - state.step)
        state.step, state.phase, state.phase_since, state.beat_at = look.step, look.phase, look.phase_since, look.beat_at
        state.moved_at, state.suspected_at, state.told_at = now, None, None

    def _note(self, phase: str, seconds: float, *, times: int = 1) -> None:
        """Short steps pass by the dozen between two looks; a few of them are noted, so that a hang after the first seconds is judged by them already."""
        if phase and seconds > 0:
            self._durations.setdefault(phase, deque(maxlen=self.window)).extend([seconds] * min(times, self.limits.known_after))

    def _stopped(self, rank: int, state: _Rank, look: Look, now: float) -> Finding | None:
        if state.stopped_at is None or now - state.stopped_at < self.limits.stopped_s or now - state.moved_at < self.limits.stopped_s:
            return None
        stopped_s, silent_s = now - state.stopped_at, now - look.beat_at
        beaten = f" and it has not beaten for {silent_s:.1f} s (step {look.step}, {look.phase})" if look.phase else f" for {stopped_s:.1f} s"
        return Finding(
            kind="stopped_rank",
            ranks=(rank,),
            since=min(state.stopped_at, look.beat_at) if look.phase else state.stopped_at,
            because=f"rank {rank} is stopped: the kernel has it in state T{beaten}",
            evidence=(f"process state T for {stopped_s:.1f} s", *([f"last beat {silent_s:.1f} s ago"] if look.phase else [])),
        )

    def _silent(self, rank: int, state: _Rank, look: Look, now: float) -> Finding | None:
        limit_s, silent_s = self.limit_s(look.phase), now - state.moved_at
        if silent_s < limit_s:
            state.suspected_at = None
            return None
        if state.suspected_at is None:
            state.suspected_at, state.suspected_cpu_s, state.suspected_stack, state.stack_moved = now, look.cpu_s, look.stack, False
            return None
        if look.stack and state.suspected_stack and look.stack != state.suspected_stack:
            state.stack_moved = True
        state.suspected_stack = look.stack or state.suspected_stack
        sign = self._second_sign(state, look, now)
        if not sign:
            return None
        return Finding(
            kind="silent_rank",
            ranks=(rank,),
            since=look.beat_at,
            because=f"rank {rank} made no progress for {silent_s:.1f} s in phase {look.phase!r} at step {look.step}; its limit is {limit_s:.1f} s, and {sign}",
            evidence=(f"limit {limit_s:.1f} s, learned from {len(self._durations.get(look.phase, ()))} times it ended", sign),
        )

    def _second_sign(self, state: _Rank, look: Look, now: float) -> str:
        assert state.suspected_at is not None
        watched_s = now - state.suspected_at
        if watched_s < self.limits.sign_s:
            return ""
        share = (look.cpu_s - state.suspected_cpu_s) / watched_s
        if share <= self.limits.idle_cpu_share:
            return f"its processes used {100 * share:.1f} % of a core over the last {watched_s:.1f} s"
        if state.suspected_stack and not state.stack_moved:
            return f"its stack has not moved for {watched_s:.1f} s"
        return ""
