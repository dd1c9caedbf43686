"""Reading a trace of jobs: CSV, gzipped or not, with the columns `job_id, submit_s, duration_s, gpus` and, where there are, `group` or `vc`, `user`,
`estimate_s`, `priority`, `min_gpus` and `max_gpus`. A row that makes no sense is left out, with its line and the reason; the others are replayed.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import UserError
from holdfast.schedule.policy import CLASSES

_NEEDED = ("job_id", "submit_s", "duration_s", "gpus")
_GZIP = b"\x1f\x8b"
_RANKS = {-1: "low", 0: "medium", 1: "high"}


class TraceUnreadable(UserError):
    """A file that is no trace."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    line: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    jobs: tuple[TraceJob, ...]
    skipped: tuple[Skipped, ...] = ()
    users_made_up: bool = False


def read_trace(path: Path) -> Trace:
    """The jobs of a file in order of submission, and the rows that were left out."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceUnreadable(f"{path} cannot be read: {error}; expected CSV, gzipped or not, beginning with {','.join(_NEEDED)}") from error
    rows = csv.DictReader(io.StringIO(text.replace("\0", ""), newline=""))
    missing = [name for name in _NEEDED if name not in (rows.fieldnames or ())]
    if missing:
        seen = ",".join(rows.fieldnames or ())[:80]
        raise TraceUnreadable(f"{path} has no column {' and no column '.join(missing)}: its first line is {seen!r}; name them in it, as in {','.join(_NEEDED)}")
    jobs: dict[str, TraceJob] = {}
    skipped: list[Skipped] = []
    try:
        for row in rows:
            try:
                job = _job(row)
                if job.id in jobs:
                    raise ValueError(f"job_id {job.id!r} was there before")
                jobs[job.id] = job
            except ValueError as error:
                skipped.append(Skipped(line=rows.line_num, because=str(error)))
    except csv.Error as error:
        raise TraceUnreadable(f"{path} is no CSV, line {rows.line_num}: {error}; expected lines such as job-1,0,3600,8") from error
    if not jobs:
        why = f"; the first row that was skipped, line {skipped[0].line}: {skipped[0].because}" if skipped else ""
        raise TraceUnreadable(f"{path} has no job in it{why}; expected rows such as job-1,0,3600,8")
    return Trace(jobs=tuple(sorted(jobs.values(), key=lambda job: job.submit_s)), skipped=tuple(skipped))


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


def _job(row: dict[str, str | None]) -> TraceJob:
    if None in row:
        raise ValueError("it has more fields than the first line")
    id = (row["job_id"] or "").strip()
    if not id:
        raise ValueError("job_id is empty")
    gpus = _whole(row, "gpus", least=1)
    least, most = _whole(row, "min_gpus", optional=True), _whole(row, "max_gpus", optional=True)
    if least > gpus or (most and most < gpus):
        raise ValueError(f"min_gpus {least} and max_gpus {most} do not enclose gpus {gpus}")
    estimate = _number(row, "estimate_s", optional=True)
    return TraceJob(
        id=id, submit_s=_number(row, "submit_s"), duration_s=_number(row, "duration_s", above=0.0), gpus=gpus, gpus_min=least, gpus_max=most,
        group=(row.get("group") or row.get("vc") or "").strip() or "all", user=(row.get("user") or "").strip(),
        estimate_s=estimate if estimate > 0 else None, priority=_priority(row.get("priority")),
    )  # fmt: skip


def _number(row: dict[str, str | None], name: str, *, above: float = -math.inf, optional: bool = False) -> float:
    text = (row.get(name) or "").strip()
    if not text and optional:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} {text[:40]!r} is not a number") from None
    if not math.isfinite(value) or value <= above:
        raise ValueError(f"{name} is {text[:40]}, expected a number{f' above {above:g}' if above > -math.inf else ''}")
    return value


def _whole(row: dict[str, str | None], name: str, *, least: int = 0, optional: bool = False) -> int:
    value = _number(row, name, optional=optional)
    if value != int(value) or value < least:
        raise ValueError(f"{name} is {value:g}, expected a whole number of {least} or more")
    return int(value)


def _priority(text: str | None) -> str:
    text = (text or "").strip().lower()
    if text in CLASSES or not text:
        return text or "medium"
    try:
        return _RANKS[max(-1, min(1, int(text)))]
    except ValueError:
        raise ValueError(f"priority {text[:40]!r} is no class; expected one of {', '.join(CLASSES)}, or a whole number: below 0 low, above 0 high") from None


def skipped_lines(skipped: Sequence[Skipped], most: int = 5) -> Iterator[str]:
    """What to tell of rows that were left out."""
    for one in skipped[:most]:
        yield f"line {one.line} is left out: {one.because}"
    if len(skipped) > most:
        yield f"and {len(skipped) - most:,} more lines"
