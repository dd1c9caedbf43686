"""The job's numbers, each looked at for what it did not do before: loss, pace, throughput, and whatever the script reports.

One value a second for each: the mean over the ranks. What is found is worth knowing and no more: it is shown for a while beside the job, and opens no incident,
because a number that does something for the first time is not yet a fault. Where an incident is about the same thing at the same time, it is part of its story.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from holdfast.detect.unusual import Unusual
from holdfast.domain.finding import Finding
from holdfast.domain.metric import USER_PREFIX

WATCHED = (
    "loss", "gradient_norm", "parameter_norm", "update_norm", "step_seconds", "step_data_seconds", "step_communication_seconds", "samples_per_second",
    "tokens_per_second", "accuracy_ratio", "validation_loss",
)  # fmt: skip
SERIES_MAX = 64
SHOWN_S = 300.0
_NONE = np.empty(0)


class JobNumbers:
    def __init__(self) -> None:
        self._unusual = Unusual(SERIES_MAX)
        self._places: dict[str, int] = {}
        self._found: dict[str, Finding] = {}

    @property
    def standing(self) -> list[Finding]:
        return list(self._found.values())

    def look(self, rows: Mapping[str, NDArray[np.float64]], now: float) -> None:
        """`rows` is every rank's newest value of every metric, NaN where it has none."""
        row = np.full(SERIES_MAX, np.nan)
        for metric, values in rows.items():
            known = values[np.isfinite(values)] if metric in WATCHED or metric.startswith(USER_PREFIX) else _NONE
            if not len(known):
                continue
            place = self._places.get(metric)
            if place is None and len(self._places) < SERIES_MAX:
                place = self._places[metric] = len(self._places)
            if place is not None:
                row[place] = float(np.mean(known))
        names = {place: metric for metric, place in self._places.items()}
        self._found = {metric: finding for metric, finding in self._found.items() if now - finding.since <= SHOWN_S}
        for found in self._unusual.look(now, row).found:
            metric = names[found.series]
            self._found[metric] = replace(found.finding, because=f"{metric}: {found.finding.because}", of=metric, since=now)
