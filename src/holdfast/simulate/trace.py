"""Reading a trace of jobs: CSV, gzipped or not, with the columns `job_id, submit_s, duration_s, gpus` and, where there are, `group` or `vc`, `user`,
`estimate_s`, `priority`, `min_gpus` and `max_gpus`. A row that makes no sense is left out, with its line and the reason; the others are replayed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.schedule.policy import CLASSES
from holdfast.simulate.table import Row, Skipped, TableUnreadable, first_of, maybe, number, rows_of

_NEEDED = ("job_id", "submit_s", "duration_s", "gpus")
_RANKS = {-1: "low", 0: "medium", 1: "high"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    id: str
    submit_s: float
    duration_s: float
    gpus: int
    group: str = "all"
    user: str = ""
    estimate_s: float | None = None
    priority: str = "medium"
    gpus_min: int = 0  # 0: as many as were asked for.
    gpus_max: int = 0
    needs: str = ""  # Another job without whose end it makes no progress.
    line: int = 0  # Of the file.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    jobs: tuple[TraceJob, ...]
    skipped: tuple[Skipped, ...] = ()
    users_made_up: bool = False


def read_trace(path: Path) -> Trace:
    """The jobs of a file in order of submission, and the rows that were left out."""
    jobs: dict[str, TraceJob] = {}

    def take(row: Row, line: int) -> None:
        job = _job(row, line)
        if job.id in jobs:
            raise ValueError(f"job_id {job.id!r} was there before")
        jobs[job.id] = job

    skipped = rows_of(path, ",".join(_NEEDED), take, lambda names: " and ".join(f"no column {name}" for name in _NEEDED if name not in names))
    if not jobs:
        raise TableUnreadable(f"{path} has no job in it{first_of(skipped)}; expected rows such as job-1,0,3600,8")
    return Trace(jobs=tuple(sorted(jobs.values(), key=lambda job: job.submit_s)), skipped=tuple(skipped))


def refused(trace: Trace, nodes: int, gpus_per_node: int, *, elastic: bool = True) -> dict[str, Skipped]:
    """The jobs that could never start on this cluster, each with its line and the limit. Who is not `elastic` gives every job as much as it asks for."""
    there = nodes * gpus_per_node
    cluster = f"more than the {there:,} of the cluster, {nodes:,} nodes of {gpus_per_node}"
    found = {}
    for job in trace.jobs:
        shrinks = elastic and job.gpus_min > 0
        least = job.gpus_min if shrinks else job.gpus
        if least > there:
            found[job.id] = Skipped(line=job.line, because=f"job {job.id}: {'min_gpus' if shrinks else 'gpus'} is {least:,}, {cluster}")
    return found


def between(trace: Trace, first_day: float, last_day: float) -> Trace:
    """The jobs that were submitted on these days, counted from the trace's zero; the last day is not among them."""
    return replace(trace, jobs=tuple(job for job in trace.jobs if first_day * 86400 <= job.submit_s < last_day * 86400))


def clipped(trace: Trace, most_s: float) -> Trace:
    """No job runs longer than this."""
    return replace(trace, jobs=tuple(replace(job, duration_s=min(job.duration_s, most_s)) for job in trace.jobs))


def with_users(trace: Trace, seed: int, users: int = 20) -> Trace:
    """Users for jobs that have none: so many in each group, the n-th with a part of 1/n (Zipf), from the seed."""
    if all(job.user for job in trace.jobs):
        return trace
    dice, parts = random.Random(seed), [1 / (number + 1) for number in range(users)]
    names = [f"user-{number + 1}" for number in range(users)]
    return replace(trace, jobs=tuple(job if job.user else replace(job, user=dice.choices(names, parts)[0]) for job in trace.jobs), users_made_up=True)


def _job(row: Row, line: int) -> TraceJob:
    id = (row["job_id"] or "").strip()
    if not id:
        raise ValueError("job_id is empty")
    gpus = _gpus(row, "gpus", least=1)
    least, most = _gpus(row, "min_gpus"), _gpus(row, "max_gpus")
    if least > gpus or (most and most < gpus):
        raise ValueError(f"min_gpus {least} and max_gpus {most} do not enclose gpus {gpus}")
    estimate = maybe(row, "estimate_s") or 0.0  # Others write 0, or -1, where nothing is known.
    return TraceJob(
        id=id, line=line, submit_s=number(row, "submit_s"), duration_s=number(row, "duration_s", above=0.0), gpus=gpus, gpus_min=least, gpus_max=most,
        group=(row.get("group") or row.get("vc") or "").strip() or "all", user=(row.get("user") or "").strip(),
        estimate_s=estimate if estimate > 0 else None, priority=_priority(row.get("priority")),
    )  # fmt: skip


def _gpus(row: Row, name: str, *, least: int = 0) -> int:
    value = number(row, name) if least else maybe(row, name) or 0.0
    if value != int(value) or value < least:
        raise ValueError(f"{name} is {value:g}, expected a whole number of {least} or more")
    return int(value)


def _priority(text: str | None) -> str:
    text = (text or "").strip().lower()
    if text in CLASSES or not text:
        return text or "medium"
    try:
        return _RANKS[max(-1, min(1, round(float(text))))]
    except (ValueError, OverflowError):
        raise ValueError(f"priority {text[:40]!r} is no class; expected one of {', '.join(CLASSES)}, or a number: below 0 low, above 0 high") from None
