"""Needs: what a job like this one took before: the peak of its memory, and how long its phases last.

Memory      jobs of the same command and the same shape (what the user said decides it: `--shape batch=32`): the mean of the logarithm of their peaks, and the
            interval in which the next one lies with 95 % (Student's t; logarithms, since a peak is never negative and errs by a factor). One run alone
            gives an interval of a factor `ALONE`. Of a shape never seen, a straight line through the peaks over the one number that differs.
Phases      the longest times of each phase in the last run of the same job: by them its next run judges ranks that fall silent in one. Not of plain steps: the
            first one of a run may compile for minutes, and nothing of the run before says how long.
Is wrong    when the data decides the memory and the shape does not say so; when the machine is another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.past import PastRun

ALONE: Final = 1.25
RUNS: Final = 20  # The newest of a shape.
TIMES: Final = 32  # Of a phase.
PHASES: Final = 16
_T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t by degrees of freedom, from 1 on.

Shape = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    command: str
    shape: Shape
    runs: int
    bytes: float
    low_bytes: float
    high_bytes: float
    because: str


def peaks(runs: Iterable[PastRun]) -> tuple[Peak, ...]:
    """Of every shape that was seen."""
    kept = list(runs)
    shapes = {(run.command, run.shape) for run in kept if run.peak_bytes > 0}
    found = [peak_of(command, shape, kept) for command, shape in sorted(shapes)]
    return tuple(one for one in found if one is not None)


def peak_of(command: str, shape: Shape, runs: Iterable[PastRun]) -> Peak | None:
    known = sorted((run for run in runs if run.command == command and run.peak_bytes > 0), key=lambda run: (run.started_at, run.job, run.run))
    same = [run for run in known if run.shape == shape][-RUNS:]
    if same:
        middle, spread = _interval([math.log(run.peak_bytes) for run in same])
        because = f"{len(same)} run{'s' if len(same) > 1 else ''} of this shape"
        return _peak(command, shape, len(same), math.exp(middle), math.exp(middle - spread), math.exp(middle + spread), because)
    return _by_line(command, shape, known)


def _interval(logs: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(logs) / len(logs)
    if len(logs) == 1:
        return mean, math.log(ALONE)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    return mean, max(0.01, _student(len(logs) - 1) * deviation * math.sqrt(1.0 + 1.0 / len(logs)))


def _by_line(command: str, shape: Shape, known: Sequence[PastRun]) -> Peak | None:
    """Through runs that differ from this shape in one number only; at least three different ones, or a line says nothing."""
    for key, text in shape:
        x = _number(text)
        rest = {(name, value) for name, value in shape if name != key}
        alike = [run for run in known if {one for one in run.shape if one[0] != key} == rest]
        points = [(at, float(run.peak_bytes)) for run in alike if (at := _number(dict(run.shape).get(key, ""))) is not None]
        if x is None or len({at for at, _ in points}) < 3:
            continue
        slope, start, error = _line(points)
        middle = start + slope * x
        if middle > 0.0:
            return _peak(command, shape, len(points), middle, max(0.0, middle - error), middle + error, f"a line over {key} through {len(points)} runs")
    return None


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    count = len(points)
    mean_x, mean_y = math.fsum(x for x, _ in points) / count, math.fsum(y for _, y in points) / count
    square = math.fsum((x - mean_x) ** 2 for x, _ in points)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / square
    start = mean_y - slope * mean_x
    left = math.fsum((y - start - slope * x) ** 2 for x, y in points)
    return slope, start, max(0.05 * mean_y, 1.5 * _student(count - 2) * math.sqrt(left / (count - 2)))  # Half as much again: it is said of where nobody was.


def _peak(command: str, shape: Shape, runs: int, middle: float, low: float, high: float, because: str) -> Peak:
    return Peak(command=command, shape=shape, runs=runs, bytes=middle, low_bytes=low, high_bytes=high, because=because)


def _student(freedom: int) -> float:
    return _T_95[min(freedom, len(_T_95)) - 1]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def phases_of(job: str, runs: Iterable[PastRun]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """How long each phase took in the newest run of the job that had any."""
    known = [run for run in runs if run.job == job and run.phases]
    if not known:
        return ()
    newest = max(known, key=lambda run: (run.started_at, run.run))
    return tuple((phase, tuple(sorted(times)[-TIMES:])) for phase, times in newest.phases[:PHASES])
