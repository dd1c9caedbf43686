"""Reading a trace of jobs: CSV, gzipped or not, with the columns `job_id, submit_s, duration_s, gpus` and, where there are, `group` or `vc`, `user`,
`estimate_s`, `priority`, `min_gpus`, `max_gpus` and `needs`: the jobs that a job waits for, with semicolons or spaces between them. A row that makes no sense
is left out, with its line and the reason, as is one that needs what is not there or could not end before it; the others are replayed.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.schedule.policy import CLASSES
from holdfast.simulate.table import Row, Skipped, TableUnreadable, first_of, maybe, number, rows_of

_NEEDED = ("job_id", "submit_s", "duration_s", "gpus")
_NO_NUMBER = ("nan", "inf", "infinity")  # As some write where nothing is known.
_BETWEEN_NEEDS = re.compile(r"[;\s]+")
_NAMED = 6  # Jobs of a circle.


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
    needs: tuple[str, ...] = ()  # Jobs that must have ended before it may start.
    hangs_until: str = ""  # The end of another job, without which it makes no progress, and of which nobody was told.
    line: int = 0  # Of the file.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    jobs: tuple[TraceJob, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()  # What else is to be known of how it was read.
    users_made_up: bool = False


def read_trace(path: Path) -> Trace:
    """The jobs of a file in order of submission, and the rows that were left out."""
    jobs: dict[str, TraceJob] = {}
    endless: list[tuple[int, str]] = []  # Estimates that say nothing.

    def take(row: Row, line: int) -> None:
        if (estimate := (row.get("estimate_s") or "").strip()).lstrip("+-").lower() in _NO_NUMBER:
            endless.append((line, estimate))
            row["estimate_s"] = None
        job = _job(row, line)
        if job.id in jobs:
            raise ValueError(f"job_id {job.id!r} was there before")
        jobs[job.id] = job

    skipped = rows_of(path, ",".join(_NEEDED), take, lambda names: " and ".join(f"no column {name}" for name in _NEEDED if name not in names))
    if not jobs:
        raise TableUnreadable(f"{path} has no job in it{first_of(skipped)}; expected rows such as job-1,0,3600,8")
    ordered = _needed_first(jobs)
    skipped = sorted([*skipped, *_left_out(jobs, {job.id for job in ordered})], key=lambda one: one.line)
    if not ordered:
        raise TableUnreadable(f"{path} has no job that could ever start{first_of(skipped)}; leave out the needs of one at least")
    return Trace(jobs=tuple(sorted(ordered, key=lambda job: job.submit_s)), skipped=tuple(skipped), notes=_unsaid(endless))


def refused(
    trace: Trace, nodes: int, gpus_per_node: int, *, elastic: bool = True, why: Callable[[TraceJob], str] | None = None
) -> dict[str, Skipped]:
    """The jobs that could never start on this cluster, each with its line and the limit. Who is not `elastic` gives every job as much as it asks for; `why`
    says what else is against a job, or ''."""
    there = nodes * gpus_per_node
    cluster = f"more than the {there:,} of the cluster, {nodes:,} nodes of {gpus_per_node}"
    found = {}
    for job in trace.jobs:  # Each after those it needs.
        shrinks = elastic and job.gpus_min > 0
        least = job.gpus_min if shrinks else job.gpus
        gone = [need for need in job.needs if need in found]
        if gone:
            found[job.id] = Skipped(line=job.line, because=f"job {job.id} needs {gone[0]}, which is refused")
        elif least > there:
            found[job.id] = Skipped(line=job.line, because=f"job {job.id}: {'min_gpus' if shrinks else 'gpus'} is {least:,}, {cluster}")
        elif why is not None and (because := why(job)):
            found[job.id] = Skipped(line=job.line, because=because)
    return found


def between(trace: Trace, first_day: float, last_day: float) -> Trace:
    """The jobs that were submitted on these days, counted from the trace's zero; the last day is not among them. What was submitted before has ended."""
    jobs = {job.id: job for job in trace.jobs if first_day * 86400 <= job.submit_s < last_day * 86400}
    kept = (replace(job, needs=tuple(need for need in job.needs if need in jobs)) if job.needs else job for job in jobs.values())
    return replace(trace, jobs=tuple(kept))


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


def _needed_first(jobs: Mapping[str, TraceJob]) -> list[TraceJob]:
    """Each after all that it needs, else in order; without those that need what is not there, comes later, or needs them."""
    needed_by: dict[str, list[TraceJob]] = {}
    for job in jobs.values():
        for need in job.needs:
            if need in jobs and jobs[need].submit_s <= job.submit_s:
                needed_by.setdefault(need, []).append(job)
    missing = {job.id: len(job.needs) for job in jobs.values()}
    ordered = [job for job in jobs.values() if not job.needs]
    for job in ordered:  # It grows meanwhile.
        for other in needed_by.get(job.id, ()):
            missing[other.id] -= 1
            if not missing[other.id]:
                ordered.append(other)
    return ordered


def _left_out(jobs: Mapping[str, TraceJob], taken: set[str]) -> list[Skipped]:
    """Why each of the others could never start."""
    unmet = {
        job.id: next(need for need in job.needs if need not in taken or jobs[need].submit_s > job.submit_s) for job in jobs.values() if job.id not in taken
    }
    circles = _circles(unmet)
    found = []
    for id, need in unmet.items():
        if id in circles:
            way = circles[id]
            named = " needs ".join(way) if len(way) <= _NAMED else f"{' needs '.join(way[:_NAMED])} and so on, {len(way) - 1:,} jobs"
            because = f"jobs would wait for each other in a circle: {named}"
        elif need not in jobs:
            because = f"job {id} needs {need}, and no row that makes sense has that job_id"
        elif jobs[need].submit_s > jobs[id].submit_s:
            because = f"job {id} needs {need}, which is submitted later (line {jobs[need].line}); expected one that is there by then"
        else:
            because = f"job {id} needs {need}, which is left out (line {jobs[need].line})"
        found.append(Skipped(line=jobs[id].line, because=because))
    return found


def _circles(after: Mapping[str, str]) -> dict[str, list[str]]:
    """For each that comes back to itself, the way."""
    found: dict[str, list[str]] = {}
    seen = set[str]()
    for start in after:
        way: dict[str, None] = {}
        one = start
        while one in after and one not in seen:
            seen.add(one)
            way[one] = None
            one = after[one]
        if one in way:
            circle = list(way)[list(way).index(one) :]
            found |= {id: [*circle[place:], *circle[: place + 1]] for place, id in enumerate(circle)}
    return found


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
        id=id, line=line, submit_s=number(row, "submit_s"), duration_s=number(row, "duration_s", least=0.0), gpus=gpus, gpus_min=least, gpus_max=most,
        group=(row.get("group") or row.get("vc") or "").strip() or "all", user=(row.get("user") or "").strip(),
        estimate_s=estimate if estimate > 0 else None, priority=_priority(row.get("priority")),
        needs=tuple(dict.fromkeys(need for need in _BETWEEN_NEEDS.split(row.get("needs") or "") if need)),
    )  # fmt: skip


def _unsaid(endless: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    if not endless:
        return ()
    rows = f"{len(endless):,} rows have" if len(endless) > 1 else "one row has"
    return (f"{rows} an estimate_s that is no time, the first in line {endless[0][0]} ({endless[0][1]}); taken as if none were given",)


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
        rank = float(text)
    except ValueError:
        rank = math.nan
    if not math.isfinite(rank):
        raise ValueError(f"priority {text[:40]!r} is no class; expected one of {', '.join(CLASSES)}, or a number: below 0 low, above 0 high")
    return "low" if rank < 0 else "high" if rank > 0 else "medium"
