"""What a replay came to: waits, completion times, use, evictions, fairness. Nothing is left out of a wait.

The wait of a job is all its time in the cluster that was not its own work: before its first start, between an eviction and the next start, restarts, and work
that was lost and done again. Without evictions it is the time to its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.simulate.replay import Replay

LARGE_GPUS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    average: float
    median: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    policy: str
    knows: str
    jobs: int
    wait_s: Spread
    completion_s: Spread
    first_wait_s: Spread  # To the first start alone.
    large_wait_s: Spread | None
    large_completion_s: Spread | None
    utilisation: float
    preemptions: int
    evictions_a_job: float
    lost_gpu_h: float
    node_failures: int
    gang_replacements: int  # A node that failed under a job was replaced, and it went on at once;
    gang_shrinks: int  # or it went on with fewer;
    gang_requeues: int  # or it had to wait.
    failure_lost_gpu_h: float
    suspect_gpu_h: float  # Run on nodes in doubt.
    jain: float  # Of the slowdown of groups: 1 when all are slowed alike.
    finish_time_fairness: float  # The 99th percentile of (completion / completion alone on the group's equal part of the cluster).
    share_error: float | None  # None when there was no window to judge.
    share_windows: int
    invariant_failures: int
    unfinished: int
    hash: str
    took_s: float


def figures(replay: Replay, *, policy: str, gpus: int, took_s: float, share: tuple[float | None, int] = (None, 0), failures: int = 0) -> Figures:
    """Of all jobs that ended."""
    ended = [one for one in replay.ran.values() if one.end == one.end]  # NaN is unlike itself.
    submit, work, size = np.array([(one.job.submit_s, one.job.duration_s, one.job.gpus) for one in ended], dtype=np.float64).T
    completion = np.array([one.end for one in ended]) - submit
    wait = np.maximum(0.0, completion - work)
    first = np.array([one.first_start for one in ended]) - submit
    large = size >= LARGE_GPUS
    span = max(one.end for one in ended) - float(submit.min())
    return Figures(
        policy=policy, knows=replay.scheduler.knows, jobs=len(ended), wait_s=_spread(wait), completion_s=_spread(completion), first_wait_s=_spread(first),
        large_wait_s=_spread(wait[large]) if large.any() else None, large_completion_s=_spread(completion[large]) if large.any() else None,
        utilisation=float((work * size).sum() / max(span * gpus, 1e-9)),
        preemptions=sum(one.evictions for one in ended), evictions_a_job=sum(one.evictions for one in ended) / len(ended),
        lost_gpu_h=sum(one.lost_gpu_s for one in ended) / 3600, node_failures=replay.failed.nodes,
        gang_replacements=replay.failed.mended["replaced"], gang_shrinks=replay.failed.mended["shrunk"], gang_requeues=replay.failed.mended["requeued"],
        failure_lost_gpu_h=replay.failed.lost_gpu_s / 3600, suspect_gpu_h=replay.failed.suspect_gpu_s / 3600, jain=_jain(replay, completion, work),
        finish_time_fairness=_finish_time(replay, completion, work, size, gpus),
        share_error=share[0], share_windows=share[1], invariant_failures=failures, unfinished=len(replay.ran) - len(ended), hash=replay.hash, took_s=took_s,
    )  # fmt: skip


def as_record(found: Figures) -> dict[str, Any]:
    """For JSON: spreads as objects, numbers rounded to what means something."""
    return {name: _plain(getattr(found, name)) for name in Figures.__slots__}


def _plain(value: object) -> object:
    if isinstance(value, Spread):
        return {name: round(getattr(value, name), 1) for name in Spread.__slots__}
    return round(value, 4) if isinstance(value, float) else value


def _spread(values: NDArray[np.float64]) -> Spread:
    return Spread(average=float(values.mean()), median=float(np.median(values)), p99=float(np.percentile(values, 99)), longest=float(values.max()))


def _jain(replay: Replay, completion: NDArray[np.float64], work: NDArray[np.float64]) -> float:
    groups = np.array([one.job.group for one in replay.ran.values() if one.end == one.end])
    slowed = np.array([float((completion[groups == group] / np.maximum(work[groups == group], 600.0)).mean()) for group in np.unique(groups)])
    return float(slowed.sum() ** 2 / (len(slowed) * (slowed**2).sum())) if slowed.any() else 1.0


def _finish_time(replay: Replay, completion: NDArray[np.float64], work: NDArray[np.float64], size: NDArray[np.float64], gpus: int) -> float:
    """How long a job took against how long it would on an equal part of the cluster, where a gang larger than the part runs slower; a second at least."""
    groups = len({one.job.group for one in replay.ran.values()})
    alone = np.maximum(work, 1.0) * np.maximum(1.0, size / (gpus / groups))
    return float(np.percentile(completion / alone, 99))
