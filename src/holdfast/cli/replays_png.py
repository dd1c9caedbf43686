"""Replays of one trace as one picture: how many jobs waited no longer than that, how many were done by then, and waits over the time of submission."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from holdfast.cli import png
from holdfast.simulate.figures import LARGE_GPUS
from holdfast.simulate.replay import Ran

_LEAST_S = 1.0  # Of a logarithmic axis: no wait at all stands there.
_BINS = 120


def draw(title: str, replays: Sequence[tuple[str, Iterable[Ran]]], path: Path) -> None:
    """The jobs of each replay, with its name."""
    figure = png.empty(13, 9, title)
    (first, second), (third, fourth) = figure.subplots(2, 2)
    for name, ran in replays:
        ended = [one for one in ran if one.end == one.end]
        submit, work, gpus, end = np.array([(one.job.submit_s, one.job.duration_s, one.job.gpus, one.end) for one in ended], dtype=np.float64).T
        wait = np.maximum(_LEAST_S, end - submit - work)
        for axes, values in ((first, wait), (second, wait[gpus >= LARGE_GPUS]), (third, end - submit)):
            if len(values):
                rising = np.sort(values)
                axes.step([rising[0], *rising], 100 * np.arange(len(values) + 1) / len(values), where="post", label=name)
        day = np.linspace(submit.min(), submit.max() + 1.0, _BINS + 1)
        count, total = np.histogram(submit, day)[0], np.histogram(submit, day, weights=wait)[0]
        average = np.divide(total, count, out=np.full(_BINS, np.nan), where=count > 0)
        fourth.plot((day[:-1] - submit.min()) / 86400, average, marker=".", markersize=3, label=name)  # A time beside which nothing was submitted has no line.
    for axes, says, what in (
        (first, "Waits", "seconds waited, evictions and restarts included"), (second, f"Waits of jobs of {LARGE_GPUS} or more GPUs", "seconds waited"),
        (third, "Completions", "seconds from submission to end"),
    ):  # fmt: skip
        axes.set(title=says, xlabel=what, ylabel="% of jobs", xscale="log")
    fourth.set(title="Average wait by time of submission", xlabel="days", ylabel="seconds")
    first.legend()
    png.save(figure, path)
