"""Signals of the workers: what their beats and gauge tables say, once a second, as signals of the catalogue.

A worker says totals since it began; a signal is what came to them since the last look, for each step. So a look that comes late loses nothing, and a worker
that finished no step in between says nothing about its steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Final

from holdfast.domain import gauges
from holdfast.domain.gauges import DIGEST_VALUES, USER_NAME, Gauge
from holdfast.domain.metric import USER_PREFIX
from holdfast.domain.signal import Signal
from holdfast.wire.messages import Reading

# What scripts call things, and what they are called here.
_KNOWN: Final = {
    "acc": "accuracy_ratio", "accuracy": "accuracy_ratio", "eval_loss": "validation_loss", "learning_rate": "learning_rate", "lr": "learning_rate",
    "tokens_per_second": "tokens_per_second", "val_loss": "validation_loss", "valid_loss": "validation_loss", "validation_loss": "validation_loss",
    gauges.COMMUNICATED: "communicated_bytes_total", gauges.PARAMETER_NORM: "parameter_norm", gauges.SKIPPED: "saves_skipped_total",
    gauges.LEARNING_RATE: "learning_rate", gauges.UPDATE_NORM: "update_norm", gauges.BAD_SAMPLES: "samples_left_out",
    gauges.READ_AGAIN: "batches_read_again_total", gauges.EPOCH: "epoch", "epoch": "epoch",
}  # fmt: skip
_PARTS: Final = {
    gauges.STEP: "step_seconds", gauges.DATA: "step_data_seconds", gauges.COMMUNICATION: "step_communication_seconds",
    gauges.OPTIMIZER: "step_optimizer_seconds", gauges.SAVE: "step_save_seconds",
}  # fmt: skip
_MEANS: Final = {"loss": (gauges.LOSS, gauges.LOSSES), "gradient_norm": (gauges.NORM, gauges.NORMS)}
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9_]+")


@dataclass(slots=True)
class _Before:
    pid: int
    at: float
    samples: int
    totals: dict[str, float]


class WorkerSignals:
    """Remembers the last look at each rank."""

    def __init__(self) -> None:
        self._before: dict[int, _Before] = {}
        self._turned: dict[int, tuple[bool, int]] = {}  # Whether its newest numbers are not finite, and how often they turned so.

    def take(self, readings: Iterable[Reading], tables: Mapping[int, list[Gauge]], now: float) -> list[Signal]:
        found: list[Signal] = []
        for reading in readings:
            found += self._of(reading, tables.get(reading.rank, []), now)
        self._before = {rank: before for rank, before in self._before.items() if rank in tables}
        return found

    def _of(self, reading: Reading, table: list[Gauge], now: float) -> Iterator[Signal]:
        rank = str(reading.rank)
        yield Signal("worker_cpu_ratio", reading.cpu_share, rank)
        if reading.step < 0:
            return
        yield Signal("step", reading.step, rank)
        yield Signal("silent_seconds", reading.silent_s, rank)
        yield Signal("phase_seconds", reading.phase_s, rank)
        yield Signal("not_finite", float(bool(reading.not_finite)), rank)
        yield Signal("not_finite_total", self._turns(reading), rank)
        totals = {one.name: one.value for one in table}
        before = self._before.get(reading.rank)
        if before is not None and before.pid == reading.pid:
            yield from _rates(rank, reading, totals, before, now)
        self._before[reading.rank] = _Before(pid=reading.pid, at=now, samples=reading.samples, totals=totals)
        yield from _numbers(rank, table)

    def _turns(self, reading: Reading) -> int:
        """How often the newest loss or norm turned NaN or infinite, as it was seen once a second."""
        bad = bool(reading.not_finite)
        before, times = self._turned.get(reading.rank, (False, 0))
        self._turned[reading.rank] = (bad, times + (bad and not before))
        return self._turned[reading.rank][1]


def _rates(rank: str, reading: Reading, totals: Mapping[str, float], before: _Before, now: float) -> Iterator[Signal]:
    if reading.samples > before.samples and now > before.at:
        yield Signal("samples_per_second", (reading.samples - before.samples) / (now - before.at), rank)
    for metric, (total, count) in _MEANS.items():
        new = totals.get(count, 0.0) - before.totals.get(count, 0.0)
        if new > 0:
            yield Signal(metric, (totals[total] - before.totals.get(total, 0.0)) / new, rank)
    steps = totals.get(gauges.STEPS, 0.0) - before.totals.get(gauges.STEPS, 0.0)
    if steps <= 0:
        return
    # A part nobody could measure is not zero: it is left out, and compute is what the others leave.
    parts = {name: (totals[name] - before.totals.get(name, 0.0)) / steps for name in _PARTS if name in totals}
    for name, seconds in parts.items():
        yield Signal(_PARTS[name], max(0.0, seconds), rank)
    rest = parts.get(gauges.STEP, 0.0) - sum(seconds for name, seconds in parts.items() if name != gauges.STEP)
    yield Signal("step_compute_seconds", max(0.0, rest), rank)


def _numbers(rank: str, table: Iterable[Gauge]) -> Iterator[Signal]:
    for gauge in table:
        if not isfinite(gauge.value):
            continue
        if gauge.name == gauges.DIGEST:
            step, digest = divmod(int(gauge.value), DIGEST_VALUES)
            yield Signal("parameter_digest", digest, rank)
            yield Signal("parameter_digest_step", step, rank)
        elif gauge.name == gauges.BAD_SINCE:
            yield Signal("not_finite_since_step", gauge.value, rank)
        elif gauge.name == gauges.GOOD_UNTIL:
            yield Signal("finite_until_step", gauge.value, rank)
        elif gauge.name in _KNOWN or not gauge.name.startswith("_"):
            yield Signal(called(gauge.name), gauge.value, rank)


def called(name: str) -> str:
    """The metric that a number becomes which a script reports under this name."""
    return _KNOWN.get(name) or USER_PREFIX + _spelled(name)


def _spelled(name: str) -> str:
    """A name as metrics are spelled: "Top-5 acc" is top_5_acc."""
    spelled = _NOT_IN_A_NAME.sub("_", name.lower()).strip("_")
    return spelled if USER_NAME.fullmatch(spelled) else "n_" + spelled[:46]
