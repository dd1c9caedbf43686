"""Silent rank: a gang gets no further, and that will not end by itself. The question is asked of the whole gang at once: no rank is accused alone.

Sees        what each rank does (`standstill.py`), how long it has been quiet, how long its phase usually lasts, which pauses ended by themselves before.
Says        `silent_rank` when every rank waits in a collective and nothing is at work: after 8 s where a hundred quick steps were seen, else after what is
            unusual for the phase; after two minutes where one of them waits on its GPU, told as a `pause` until then. `stopped_rank` for a process that the
            kernel does not run. And `silent_rank` for ranks outside a collective that are beyond their limit: until then they are a `pause`, or `late_data`.
Is silent   about the progress of a script without our lines, which does not beat: that it is stopped is seen all the same.
Is wrong    when all ranks wait in a collective for something outside the gang, or for a transfer that moves less than 64 KiB a second; and when a pause is
            longer than its limit: ten minutes for a rank that does nothing, half an hour for one that works (two hours where nobody waits for it), never less
            than a longer timeout of the process group, and ten times the longest pause known at the place. `--hang-limit` sets it.
Costs       one pass over the ranks per look.

A rank that works outside a collective excuses those who wait for it. A rank whose signs are missing may be at work, and so is never proof of a hang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.detect.late_data import late_data
from holdfast.detect.pause import in_time, is_late, pause
from holdfast.detect.standstill import IDLE_S, STOPPED_S, Doing, Sight, ranks_in_words
from holdfast.domain.finding import Finding
from holdfast.domain.signs import BEGUN, COLLECTIVE, Signs

EARLY_S: Final = 8.0  # All ranks have waited for this long, where steps are quick.
ON_GPU_S: Final = 120.0  # A collective on a GPU may stand behind long work of the same GPU, which looks no different from outside.
SAME_STACK_S: Final = 4.0  # And their stacks have not changed for this long.
STOPPED_BESIDE_OTHERS_S: Final = 20.0  # A rank is stopped, and others do something that need not wait for it.
IDLE_LIMIT_S: Final = 600.0
WORK_LIMIT_S: Final = 1800.0
ALONE_LIMIT_S: Final = 7200.0
USUAL_TIMEOUT_S: Final = 1800.0  # A process group with a longer timeout was given it by somebody who expects longer pauses.
GROWS: Final = 10.0  # Times the longest pause that is known at a place.
_OUTSIDE: Final = (Doing.WORKS, Doing.IDLE, Doing.UNSEEN)
_BEHIND_THE_LOOP: Final = "finish"  # There a script does what it likes for as long as it likes, unless others wait for it.
_SHOWN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLimits:
    """What is known of limits: those that a person has set, by phase ("" for all but the start; 0: never), and the longest pause that ended at each place."""

    by_phase: Mapping[str, float] = field(default_factory=dict)
    longest_s: Mapping[str, float] = field(default_factory=dict)
    struck_s: Mapping[str, float] = field(default_factory=dict)  # Places where a rank was taken for hung, and after how long.

    def asked_s(self, phase: str) -> float | None:
        """Returns what a person has set for this phase; None: nothing."""
        return self.by_phase.get(phase, self.by_phase.get("") if phase != "start" else None)

    def known_s(self, place: str) -> float:
        """Returns the longest pause that ended by itself at a place."""
        return _longest(self.longest_s, place)

    def on_gpu_s(self, signs: Signs) -> float:
        """Returns after how long a gang that waits on its GPUs is taken for hung."""
        return max(signs.usual_s, ON_GPU_S, GROWS * max(self.known_s(signs.place), _longest(self.struck_s, signs.place)))

    def limit_s(self, sight: Sight) -> float | None:
        """Returns after how long a rank outside a collective is taken for hung; None: never."""
        assert sight.signs is not None
        asked_s = self.asked_s(sight.phase)
        if asked_s is not None:
            return asked_s or None
        place, timeout_s = sight.signs.place, sight.signs.group_timeout_s or 0.0
        least_s = IDLE_LIMIT_S if sight.doing is Doing.IDLE else ALONE_LIMIT_S if sight.alone else WORK_LIMIT_S
        return max(least_s, timeout_s if timeout_s > USUAL_TIMEOUT_S else 0.0, GROWS * max(self.known_s(place), _longest(self.struck_s, place)))


def is_same_place(one: str, other: str) -> bool:
    """Whether two pauses are in the same place. It is known by its outer calls: the longer a pause is looked at, the fewer of them stay the same."""
    return bool(one) and bool(other) and (one.startswith(other) or other.startswith(one))


def _longest(known: Mapping[str, float], place: str) -> float:
    return max((seconds for other, seconds in known.items() if is_same_place(other, place)), default=0.0)


def judge(sights: Sequence[Sight], limits: HangLimits) -> tuple[Finding, ...]:
    """Says what stands still in a gang, and why: what has to be acted on, or else what is worth telling."""
    if not all(sight.heard for sight in sights):
        return ()  # A rank on a node that is not heard may be at work.
    if any(sight.doing is Doing.STOPPED for sight in sights):
        stopped = _stopped(sights)
        if stopped:
            return stopped
    if sights and all(sight.doing in (Doing.WAITS, Doing.STOPPED) for sight in sights):
        return _all_wait([sight for sight in sights if sight.doing is Doing.WAITS], limits)
    waited_for = any(sight.doing is Doing.WAITS for sight in sights)
    outside = [sight for sight in sights if sight.doing in _OUTSIDE and sight.signs is not None and (waited_for or sight.phase != _BEHIND_THE_LOOP)]
    beyond = [sight for sight in outside if (limit_s := limits.limit_s(sight)) is not None and sight.quiet_s >= limit_s]
    if outside and len(beyond) == len(outside):
        return tuple(_beyond(sight, sights, limits) for sight in beyond)
    late = [sight for sight in outside if is_late(sight, limits.known_s(sight.signs.place if sight.signs else "")) and not _was_waiting(sight)]
    return tuple(
        (late_data if sight.has_late_data else pause)(sight, [other for other in sights if other is not sight], limits.limit_s(sight)) for sight in late
    )


def _was_waiting(sight: Sight) -> bool:
    """Whether its stack is still that of a collective and its main thread has not run for more than a moment: it was just let go, or only what is beside it
    works. It has not paused, and the rank it waited for is told of."""
    signs = sight.signs
    return signs is not None and signs.inside in (COLLECTIVE, BEGUN) and signs.main_busy_s < IDLE_S


def _stopped(sights: Sequence[Sight]) -> tuple[Finding, ...]:
    """A rank that the kernel does not run cannot go on by itself. As long as the others may do something without it there is no hurry."""
    stopped = [sight for sight in sights if sight.doing is Doing.STOPPED]
    others = [sight for sight in sights if sight.doing is not Doing.STOPPED]
    need_them = all(not sight.phase or (sight.signs is not None and sight.signs.inside in (COLLECTIVE, BEGUN)) for sight in others)
    least_s = STOPPED_S if need_them else STOPPED_BESIDE_OTHERS_S
    return tuple(_is_stopped(sight) for sight in stopped if sight.signs is not None and sight.signs.stopped_s >= least_s)


def _is_stopped(sight: Sight) -> Finding:
    signs = sight.signs
    assert signs is not None
    beaten = f" and it has not beaten for {signs.quiet_s:.1f} s (step {sight.step}, {sight.phase})" if sight.phase else f" for {signs.stopped_s:.1f} s"
    return Finding(
        kind="stopped_rank", node=sight.node, ranks=(sight.rank,), because=f"rank {sight.rank} is stopped: the kernel has it in state T{beaten}",
        evidence=(f"process state T for {signs.stopped_s:.1f} s", *([f"last beat {signs.quiet_s:.1f} s ago"] if sight.phase else [])),
        lasted_s=max(signs.stopped_s, signs.quiet_s if sight.phase else 0.0),
    )  # fmt: skip


def _all_wait(waiting: Sequence[Sight], limits: HangLimits) -> tuple[Finding, ...]:
    """Everybody waits for somebody, and there is nobody left to wait for."""
    for sight in waiting:
        signs, asked_s = sight.signs, limits.asked_s(sight.phase)
        assert signs is not None
        least_s = limits.on_gpu_s(signs) if sight.waits_on_gpu else EARLY_S if signs.quick else signs.usual_s
        if asked_s == 0.0 or signs.quiet_s < min(least_s, asked_s or least_s) or (signs.stack_s or 0.0) < SAME_STACK_S:
            return _waits_on_gpus(waiting, limits)
    if not waiting:
        return ()
    culprits = _odd_ones(waiting)
    first = max(culprits, key=lambda sight: sight.quiet_s)
    signs = first.signs
    assert signs is not None
    who, where = ranks_in_words([sight.rank for sight in culprits]), f" in {signs.where}" if signs.where else ""
    said = f"{who} {'has' if len(culprits) == 1 else 'have'} not moved for {in_time(first.quiet_s)}{where}"
    return (
        Finding(
            kind="silent_rank", node=first.node, ranks=tuple(sight.rank for sight in culprits), step=first.step, place=signs.place, lasted_s=first.quiet_s,
            because=f"every rank waits in a collective and nothing is at work: {said}", evidence=_evidence(waiting),
        ),
    )  # fmt: skip


def _waits_on_gpus(waiting: Sequence[Sight], limits: HangLimits) -> tuple[Finding, ...]:
    """Says that nobody gets further, before it is time to act."""
    late = [
        (sight, limits.on_gpu_s(sight.signs)) for sight in waiting
        if sight.signs is not None and sight.waits_on_gpu and is_late(sight, limits.known_s(sight.signs.place))
    ]  # fmt: skip
    return tuple(pause(sight, [other for other in waiting if other is not sight], limits.asked_s(sight.phase) or limit_s) for sight, limit_s in late)


def _odd_ones(waiting: Sequence[Sight]) -> Sequence[Sight]:
    """Those behind the others, or in another place than most; all of them where nobody stands out."""
    least = min(sight.step for sight in waiting)
    behind = [sight for sight in waiting if sight.step == least]
    if len(behind) < len(waiting):
        return behind
    places = Counter(sight.signs.place for sight in waiting if sight.signs is not None)
    usual, times = places.most_common(1)[0]
    odd = [sight for sight in waiting if sight.signs is not None and sight.signs.place != usual]
    return odd if odd and times > len(odd) else waiting


def _beyond(sight: Sight, sights: Sequence[Sight], limits: HangLimits) -> Finding:
    signs, limit_s = sight.signs, limits.limit_s(sight)
    assert signs is not None and limit_s is not None
    where = f"in {signs.where}" if signs.where else f"in phase {sight.phase!r}"
    late = "has waited for data" if sight.has_late_data else "has made no progress"
    others = sum(other.doing is Doing.WAITS for other in sights)
    waited_for = f", and {others} of {len(sights) - 1} other ranks wait in a collective" if others else ""
    return Finding(
        kind="silent_rank", node=sight.node, ranks=(sight.rank,), step=sight.step, place=signs.place, lasted_s=signs.quiet_s,
        because=f"rank {sight.rank} {late} for {in_time(signs.quiet_s)} {where} at step {sight.step}; its limit is {in_time(limit_s)}{waited_for}",
        evidence=_evidence([sight, *(other for other in sights if other is not sight and other.signs is not None)]),
    )  # fmt: skip


def _evidence(sights: Sequence[Sight]) -> tuple[str, ...]:
    return tuple(f"rank {sight.rank} is {sight}" for sight in sights[:_SHOWN])
