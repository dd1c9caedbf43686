"""Which nodes are about to fail, as far as the series that jobs of the last day have kept can tell. Shown by `holdfast learn report`; nothing acts on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.cli.job import jobs
from holdfast.control.history import LEVELS, Point, read_history
from holdfast.learn.decay import DAY_S
from holdfast.learn.precursors import Foretold, foretell

# What each sign is counted in; of heat it is the hours in which clocks were held down for it.
METRICS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "corrected_errors": ("gpu_ecc_corrected_total",),
    "remapped_rows": ("gpu_rows_remapped_total",),
    "hot_hours": ("gpu_throttled_thermal",),
    "link_errors": ("gpu_nvlink_errors_total", "gpu_pcie_replays_total"),
    "contained_xids": ("gpu_xid_total",),
}
_WEEK_DAYS: Final = 7
_JOBS: Final = 20  # The newest; older ones have nothing of the last day.
_LONGEST_S: Final = LEVELS[-1][0]

Signs = dict[str, float]


def foretold(root: Path, now: float) -> list[tuple[str, Foretold]]:
    """Every node that somebody watched in the last day, the likeliest to fail first."""
    last: dict[str, Signs] = {}
    before: dict[str, Signs] = {}
    for directory in jobs(root)[:_JOBS]:
        for sign, metrics in METRICS_OF.items():
            for series, points in read_history(directory.series, metrics, now - (1 + _WEEK_DAYS) * DAY_S, now).items():
                if series.node:  # The one over all nodes has none.
                    _add(last, series.node, sign, _sum(points, now - DAY_S, now))
                    _add(before, series.node, sign, _sum(points, now - (1 + _WEEK_DAYS) * DAY_S, now - DAY_S))
    usual = {node: {sign: value / _WEEK_DAYS for sign, value in signs.items()} for node, signs in before.items()}
    told = [(node, foretell(_in_hours(signs), _in_hours(usual[node]))) for node, signs in last.items()]
    return sorted(told, key=lambda one: (-one[1].chance, one[0]))


def _add(found: dict[str, Signs], node: str, sign: str, value: float) -> None:
    signs = found.setdefault(node, {})
    signs[sign] = signs.get(sign, 0.0) + value


def _sum(points: Sequence[Point], since: float, until: float) -> float:
    """A point stands for the time to the next one; of a counter it is what it grew a second."""
    ends = [*(point.at for point in points[1:]), until]
    return sum(point.mean * max(0.0, min(end, point.at + _LONGEST_S, until) - max(point.at, since)) for point, end in zip(points, ends, strict=True))


def _in_hours(signs: Mapping[str, float]) -> Signs:
    return {sign: value / 3600.0 if sign == "hot_hours" else value for sign, value in signs.items()}
