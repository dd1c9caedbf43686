"""The Numenta Anomaly Benchmark: how well what is unusual in a number over time is found, by the configuration that `holdfast detect` runs.

Every file is read as a stream, and one default serves all of them. Beside it, in the same run, NAB's own baseline: the windowed Gaussian, written anew after
its description (a window of 6,400 rows that moves by 100, the tail of the normal distribution). NAB's published results have 12 digits, and so many are kept of
its scores here; on the 34 files this was made with it then comes to 50.9, 31.1 and 59.0 for the three profiles, as those do, which proves the scoring.

Also: the score with each constant of the detector changed by 30 % both ways, and with the threshold taken from the other folders; and how many samples a second
one core judges, many series at once.

The corpus is not part of this repository: fetch https://github.com/numenta/NAB (version 1.1) as DIR/nab and say `--data DIR`, or HOLDFAST_DATA=DIR.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
from harness.measure import Report, arguments, median, say
from harness.numenta import Floats, Labelled, Profile, best, corpus, outcome, profiles

from holdfast.detect import peaks, period, unusual, usual
from holdfast.detect.unusual import Unusual

BAR, GOAL = 73.0, 80.5
SAMPLES_PER_S = 1_000_000.0
SERIES = 10_000
FETCH = "Fetch https://github.com/numenta/NAB (version 1.1) as DIR/nab, and say --data DIR."
# Every constant that is a matter of degree. Bounds that only keep numbers finite are not.
CONSTANTS: tuple[tuple[ModuleType, str], ...] = (
    (unusual, "NOTABLE"), (unusual, "FAINT"), (unusual, "_MORE"), (unusual, "_JUMP_ROWS"), (unusual, "_LAST_ROWS"),
    (unusual, "_QUIET_SHARE"), (unusual, "_QUIET_ROWS_MIN"), (unusual, "_QUIET_ROWS_MAX"), (unusual, "_WILD"), (unusual, "_SMALL"),
    (peaks, "_FEW"), (peaks, "_MANY"), (peaks, "_LENGTH_COUNTS"),
    (usual, "MEMORY_ROWS"), (usual, "_BETTER"), (usual, "_TRIED_ROWS"), (usual, "_PLACES"), (usual, "_RATE"),
    (period, "_FOUND"), (period, "_KEPT"), (period, "_ALIKE"), (period, "_OUTLIER"),
)  # fmt: skip


def main() -> None:
    chosen = arguments(__doc__ or "", texts={"data": "the folder that holds nab/ (default: $HOLDFAST_DATA)"}, rounds=(9, 3, "rounds of the throughput"))
    report = Report("Numenta Anomaly Benchmark")
    root = data_folder(chosen.data)
    if root is None:
        report.note(f"The corpus was not scored: neither --data nor HOLDFAST_DATA is set. {FETCH}")
    else:
        score(report, corpus(root), profiles(root), quick=chosen.quick)
    throughput(report, chosen.rounds, chosen.seed)
    report.finish(chosen)


def data_folder(given: str) -> Path | None:
    where = given or os.environ.get("HOLDFAST_DATA", "")
    if not where:
        return None
    root = Path(where) / "nab"
    if not (root / "data").is_dir():
        sys.exit(f"nab.py: {root / 'data'} is not there. {FETCH}")
    return root


def score(report: Report, files: Sequence[Labelled], wanted: Sequence[Profile], *, quick: bool) -> None:
    windows = sum(len(file.windows) for file in files)
    report.note(f"{len(files)} files with {windows} windows in {len({file.folder for file in files})} folders.")
    report.note(f"The goal for the 34 files is above {GOAL}. Published results score there: ARTime 80.4, 71.6, 85.5; Numenta HTM 72.8, 66.0, 76.9.")
    say(f"{len(files)} files, {sum(len(file.values) for file in files):,} rows, {windows} windows")
    ours, peer = judged(files), [windowed_gaussian(file.values) for file in files]
    for name, scores in (("holdfast", ours), ("windowed Gaussian", peer)):
        by_profile(report, name, files, scores, wanted)
    standard = next(profile for profile in wanted if profile.name == "standard")
    report.bar("standard profile, one default for all files", best(files, ours, standard).score, "of 100", at_least=BAR)
    other_folders(report, files, ours, standard)
    if not quick:
        sensitivity(report, files, standard)


def judged(files: Sequence[Labelled]) -> list[Floats]:
    """All files at once, each as long as it is: a batch gives what each series gives alone, which tests/detect/test_unusual.py holds it to."""
    rows = max(len(file.values) for file in files)
    at, values = np.full((2, rows, len(files)), np.nan)
    for column, file in enumerate(files):
        at[: len(file.at), column], values[: len(file.values), column] = file.at, file.values
    scores = Unusual(len(files)).look_at_rows(at, values).scores
    return [scores[: len(file.values), column] for column, file in enumerate(files)]


def windowed_gaussian(values: Floats, *, window: int = 6400, moves_by: int = 100) -> Floats:
    scores = np.zeros(len(values))
    mean, deviation = 0.0, 1.0
    start = end = 0
    for row, value in enumerate(values.tolist()):
        scores[row] = 1 - 0.5 * math.erfc(abs(value - mean) / deviation / math.sqrt(2)) if end else 0.0
        if end - start < window or row + 1 - end == moves_by:
            start, end = (start if end - start < window else start + moves_by), row + 1
            mean, deviation = float(values[start:end].mean()), float(values[start:end].std()) or 1e-6
    return np.round(scores, 12)


def by_profile(report: Report, name: str, files: Sequence[Labelled], scores: Sequence[Floats], wanted: Sequence[Profile]) -> None:
    for profile in wanted:
        whole = best(files, scores, profile)
        report.series(f"{name}, {profile.name}", "of 100", [whole.score], f"{whole.hits} windows found, {whole.false_alarms} false alarms")
        say(f"{name}, {profile.name}: {whole.score:.1f}")
        folders = {folder: outcome(*of_folders(files, scores, {folder}), profile, whole.threshold) for folder in sorted({file.folder for file in files})}
        report.raw[f"{name}, {profile.name}"] = {
            "score": whole.score, "threshold": whole.threshold,
            "folders": {folder: {"score": one.score, "hits": one.hits, "false_alarms": one.false_alarms} for folder, one in folders.items()},
        }  # fmt: skip
        for folder, one in folders.items():
            unit = "of 100" if any(file.windows for file in files if file.folder == folder) else "windows lost"
            report.series(f"  {folder}", unit, [one.score], f"{one.hits} windows found, {one.false_alarms} false alarms")


def of_folders(files: Sequence[Labelled], scores: Sequence[Floats], folders: set[str]) -> tuple[list[Labelled], list[Floats]]:
    chosen = [number for number, file in enumerate(files) if file.folder in folders]
    return [files[number] for number in chosen], [scores[number] for number in chosen]


def other_folders(report: Report, files: Sequence[Labelled], scores: Sequence[Floats], profile: Profile) -> None:
    """Each folder at the threshold that the others would choose."""
    folders = sorted({file.folder for file in files if file.windows})
    for folder in folders:
        threshold = best(*of_folders(files, scores, {file.folder for file in files} - {folder}), profile).threshold
        there = outcome(*of_folders(files, scores, {folder}), profile, threshold)
        report.series(f"threshold from the other folders: {folder}", "of 100", [there.score], f"threshold {threshold:.3f}")


def sensitivity(report: Report, files: Sequence[Labelled], profile: Profile) -> None:
    for module, name in CONSTANTS:
        found = []
        for factor in (0.7, 1.3):
            with changed(module, name, factor):
                found.append(best(files, judged(files), profile).score)
        report.series(f"{module.__name__.rpartition('.')[2]}.{name.strip('_')} changed by 30 %", "of 100", found)
        say(f"{name.strip('_')} × 0.7 and × 1.3: {found[0]:.1f} and {found[1]:.1f}")


@contextmanager
def changed(module: ModuleType, name: str, factor: float) -> Iterator[None]:
    """A constant with another value for a while, in every module that has it by this name."""
    before = getattr(module, name)
    value = int(before * factor) if isinstance(before, int) else before * factor
    holders = [one for one in (unusual, usual, peaks, period) if hasattr(one, name)]
    for one in holders:
        setattr(one, name, value)
    try:
        yield
    finally:
        for one in holders:
            setattr(one, name, before)


def throughput(report: Report, rounds: int, seed: int) -> None:
    """Row by row over many series, as control would; by CPU time, for what else the machine does is not ours."""
    rows = np.random.default_rng(seed).normal(size=(128, SERIES))
    detector = Unusual(SERIES)
    speeds = [rows.size / cpu_s(lambda: [detector.look(60.0 * row, values) for row, values in enumerate(rows)]) for _ in range(rounds)]
    report.series(f"samples judged, {SERIES:,} series at once, row by row", "a second of one core", speeds)
    report.bar("samples a second on one core", median(speeds), "a second", at_least=SAMPLES_PER_S)
    alone = Unusual(1)
    values = np.random.default_rng(seed).normal(size=(20_000, 1))
    report.series("one series of 20,000 rows", "s", [cpu_s(lambda: alone.look_at_rows(60.0 * np.arange(20_000), values))])


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
