"""Pacing: how long the job has been run, how long it will need, and what takes the time. Feeds the two detectors that ask whether it ends in time."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

import numpy as np

from holdfast.control.heard import PARTS, Row
from holdfast.detect.hopelessly_slow import HopelesslySlow
from holdfast.detect.over_time import OverTime, Spent
from holdfast.detect.where import Where
from holdfast.domain.finding import Finding
from holdfast.domain.goodput import Bucket
from holdfast.domain.job import Limits
from holdfast.domain.state import State


class Pacing:
    """One job, over all its generations."""

    def __init__(self) -> None:
        self._where = Where()
        self._over = OverTime(limits=Limits())
        self._hopeless = HopelesslySlow()

    @property
    def standing(self) -> list[Finding]:
        return [*self._over.standing, *self._hopeless.standing]

    def look(self, state: State, rows: Mapping[str, Row], *, moved: bool, progress: float, target: float, now: float) -> None:
        """`moved`: a rank has finished a step since the last look."""
        assert state.spec is not None
        limits = state.spec.limits or Limits()
        if self._over.limits != limits:
            self._over, self._hopeless = OverTime(limits=limits), HopelesslySlow(allowed_s=limits.job_s)
        ledger = state.ledger.up_to(now)
        buckets, elapsed_s = ledger.totals(), ledger.run_s
        parts = {name: _middle(rows[f"step_{name}_seconds"]) for name in (*PARTS, "communication")}
        if moved:
            self._where.look(parts)
        productive = sum(buckets.get(bucket, 0.0) for bucket in (Bucket.PRODUCTIVE, Bucket.SMALLER, Bucket.SAVE))
        spent = Spent(
            elapsed_s=elapsed_s, progress=progress, epoch=_least(rows["epoch"]), target=target, evidence=self._where.evidence(),
            where=self._where.in_words(productive / elapsed_s if elapsed_s > 0 else 1.0),
        )  # fmt: skip
        self._over.look(spent, now)
        if moved:
            self._hopeless.look(_middle(rows["step_seconds"]), parts, elapsed_s=elapsed_s, needs_s=self._over.needs_s, now=now)


def _middle(row: Row) -> float:
    known = row[np.isfinite(row)]
    return float(np.median(known)) if len(known) else nan


def _least(row: Row) -> float:
    known = row[np.isfinite(row)]
    return float(known.min()) if len(known) else nan
