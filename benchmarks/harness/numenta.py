"""The Numenta Anomaly Benchmark's corpus and scoring, after Lavin and Ahmad, arXiv 1510.03336, and the rules of its version 1.1.

A detector gives every row of every file a score. A threshold makes detections of them, the same for all files; it is the one with the best result. The first
15 % of a file, at most 750 rows, do not count. In each window around an anomaly the earliest detection counts, by where it lies: 1 at the window's beginning,
falling along a sigmoid to 0 at its end. A window without one costs the profile's weight of a miss. Every detection outside a window costs the weight of a
false alarm, less for one just behind a window. The result is scaled: detecting nothing is 0; each window on its first row, and nothing else, is 100.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.cli.detect import read_series

Floats = NDArray[np.float64]

_PROBATION_SHARE, _PROBATION_ROWS_MAX = 0.15, 750
_NOTHING = 1.1  # A threshold above every score.


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    hit: float
    miss: float
    false_alarm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A file of the corpus: a series, its windows as first and last row, and what a detection on each row is worth before the profile's weights."""

    folder: str
    name: str
    at: Floats
    values: Floats
    windows: tuple[tuple[int, int], ...]
    probation: int
    worth: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    score: float
    threshold: float
    hits: int
    false_alarms: int


def corpus(root: Path) -> list[Labelled]:
    """Every file under `root` (as in NAB's repository, or with everything of it in one folder) that has labels."""
    windows = json.loads(_first(root / "labels" / "combined_windows.json", root / "combined_windows.json").read_text())
    paths = sorted([*(root / "data").rglob("*.csv"), *(root / "data").rglob("*.csv.gz")])
    return [_labelled(path, windows[name]) for path in paths if (name := f"{path.parent.name}/{path.name.removesuffix('.gz')}") in windows]


def profiles(root: Path) -> list[Profile]:
    found = json.loads(_first(root / "config" / "profiles.json", root / "profiles.json").read_text())
    costs = {name: one["CostMatrix"] for name, one in found.items()}
    return [Profile(name=name, hit=one["tpWeight"], miss=one["fnWeight"], false_alarm=one["fpWeight"]) for name, one in costs.items()]


def _first(*paths: Path) -> Path:
    return next((path for path in paths if path.exists()), paths[-1])


def _labelled(path: Path, limits: Sequence[Sequence[str]]) -> Labelled:
    series = read_series(str(path))
    rows = {at: row for row, at in reversed(list(enumerate(series.at.tolist())))}  # Of a time that comes twice, the first.
    windows = tuple((rows[_seconds(first)], rows[_seconds(last)]) for first, last in limits)
    count = len(series.values)
    probation = min(math.floor(_PROBATION_SHARE * count), _PROBATION_ROWS_MAX)
    return Labelled(
        folder=path.parent.name, name=path.name.removesuffix(".gz"), at=series.at, values=series.values, windows=windows, probation=probation,
        worth=_worth(count, windows),
    )  # fmt: skip


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.partition(".")[0]).replace(tzinfo=UTC).timestamp()


def _sigmoid(place: float) -> float:
    return -1.0 if place >= 3.0 else 2.0 / (1.0 + math.exp(5.0 * place)) - 1.0


def _worth(count: int, windows: Sequence[tuple[int, int]]) -> Floats:
    worth = np.full(count, -1.0)  # Before any window a false alarm costs its full weight.
    for number, (first, last) in enumerate(windows):
        rows = last - first + 1
        worth[first : last + 1] = [_sigmoid(-(last - row + 1) / rows) / _sigmoid(-1.0) for row in range(first, last + 1)]
        until = windows[number + 1][0] if number + 1 < len(windows) else count
        worth[last + 1 : until] = [_sigmoid((row - last) / (rows - 1)) for row in range(last + 1, until)]
    return worth


def best(files: Sequence[Labelled], scores: Sequence[Floats], profile: Profile) -> Outcome:
    """The outcome at the threshold that suits these files best."""
    levels, gains = [], []
    for file, score in zip(files, scores, strict=True):
        outside = np.arange(file.probation, len(score))
        for first, last in file.windows:
            outside = outside[(outside < first) | (outside > last)]
            inside = np.arange(max(first, file.probation), last + 1)
            inside = inside[np.argsort(-score[inside], kind="stable")]
            # As the threshold falls past each row of the window: what the earliest row at or above it is worth, beginning with a miss.
            so_far = np.maximum.accumulate(np.append(-profile.miss, profile.hit * file.worth[inside]))
            levels.append(score[inside])
            gains.append(np.diff(so_far))
        levels.append(score[outside])
        gains.append(profile.false_alarm * file.worth[outside])
    level = np.concatenate(levels)
    order = np.argsort(-level, kind="stable")
    level, total = level[order], np.cumsum(np.concatenate(gains)[order])
    ends = np.append(level[1:] != level[:-1], True)  # Rows of one score are detected together.
    thresholds, totals = np.append(_NOTHING, level[ends]), np.append(0.0, total[ends])
    return outcome(files, scores, profile, float(thresholds[totals.argmax()]))


def outcome(files: Iterable[Labelled], scores: Iterable[Floats], profile: Profile, threshold: float) -> Outcome:
    """What a threshold gives on these files. Without a window among them the score is what false alarms cost, in windows."""
    total, windows, hits, false_alarms = 0.0, 0, 0, 0
    for file, score in zip(files, scores, strict=True):
        detected = np.flatnonzero(score >= threshold)
        detected = detected[detected >= file.probation]
        outside = np.ones(len(detected), dtype=np.bool_)
        for first, last in file.windows:
            inside = (detected >= first) & (detected <= last)
            outside &= ~inside
            hits += bool(inside.any())
            total += profile.hit * float(file.worth[detected[inside][0]]) if inside.any() else -profile.miss
        windows += len(file.windows)
        false_alarms += int(outside.sum())
        total += profile.false_alarm * float(file.worth[detected[outside]].sum())
    scaled = 100 * (total + windows * profile.miss) / (windows * (profile.hit + profile.miss)) if windows else total
    return Outcome(score=scaled, threshold=threshold, hits=hits, false_alarms=false_alarms)
