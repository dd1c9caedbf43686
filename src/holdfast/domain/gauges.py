"""The gauge table: named numbers of a worker, in shared memory behind its beat. The worker writes, the agent reads from outside.

A slot is taken once, by a name, and never given back: its name and unit stand before the count says that it is there, and afterwards only its value changes,
with one store of eight aligned bytes. So no reader sees half of anything, and a write costs a tenth of a microsecond.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

SLOTS: Final = 96
_COUNT: Final = struct.Struct("Q")
_NAMES: Final = struct.Struct("48s16s")
_VALUE: Final = struct.Struct("d")  # Native, which is one store; the standard sizes are written byte by byte.
_SLOT_BYTES: Final = _NAMES.size + _VALUE.size
TABLE_BYTES: Final = _COUNT.size + SLOTS * _SLOT_BYTES
NAME_MAX: Final = 48
USER_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")  # What a script may call a number of its own.
UNIT_MAX: Final = 16

# What the trainer itself says: seconds and counts since the process began, of which the agent takes differences. A script cannot report a name that begins
# with an underscore.
STEP: Final = "_step_s"
STEPS: Final = "_steps"
DATA: Final = "_data_s"
COMMUNICATION: Final = "_communication_s"
OPTIMIZER: Final = "_optimizer_s"
SAVE: Final = "_save_s"
SKIPPED: Final = "_saves_skipped"
SAVE_FAILED: Final = "_save_failed"  # Of the newest save that the worker wrote by itself: 0 when it did, else the step times `FAILED_STEPS`, plus the errno.
FAILED_STEPS: Final = 1 << 12
COMMUNICATED: Final = "_communicated_bytes"
LOSS: Final = "_loss"  # The sum over all steps at which it was finite, and how many those were; the same for the gradient's norm.
LOSSES: Final = "_losses"
NORM: Final = "_norm"
NORMS: Final = "_norms"
# And what it measures now and then.
PARAMETER_NORM: Final = "_parameter_norm"
UPDATE_NORM: Final = "_update_norm"
LEARNING_RATE: Final = "_learning_rate"
GPU_MEMORY: Final = "_gpu_memory_bytes"  # What torch has allocated at the end of a step,
GPU_PEAK: Final = "_gpu_peak_bytes"  # the most it ever had,
GPU_SIZE: Final = "_gpu_size_bytes"  # and what it may have.
MICRO_BATCH: Final = "_micro_batch"  # The most samples the rank is given at once, where that may be changed; else 0.
LOADER_WORKERS: Final = "_loader_workers"
BAD_SAMPLES: Final = "_bad_samples"  # Samples that could not be read and were left out.
READ_AGAIN: Final = "_read_again"  # Batches that could not be read at once.
GROUP_TIMEOUT: Final = "_group_timeout_s"  # After so long torch itself ends a collective of the default process group that does not end.
EPOCH: Final = "_epoch"  # Epochs done, with the part of the one under way.
BAD_SINCE: Final = "_bad_since"  # The step since which the loss is not finite; NaN while it is.
GOOD_UNTIL: Final = "_good_until"  # And the last step before that whose loss was finite.
DIGEST: Final = "_digest"  # The step times `DIGEST_VALUES`, plus the checksum: one number, so that the two can never be of different steps.
DIGEST_VALUES: Final = 1 << 24
HOLDS: Final = "_holds"  # A number of what the rank holds: another rank with the same number holds the same.
MESH: Final = "_mesh_"  # With the place and the name of a dimension behind, `_mesh_0_dp`: its size.
RESIZES: Final = "resizes"  # The unit of one that may have another size.


class Gauge(NamedTuple):
    name: str
    unit: str
    value: float


class GaugeTable:
    """The worker's side. Without memory it takes everything and keeps nothing."""

    def __init__(self, view: memoryview | None) -> None:
        self._view = view
        self._places: dict[str, int] = {}

    def set(self, name: str, value: float, unit: str = "") -> bool:
        """Write a number; False when all slots are taken and this name has none."""
        if self._view is None:
            return True
        place = self._places.get(name)
        if place is None:
            if len(self._places) == SLOTS:
                return False
            place = self._take(self._view, name, unit)
        _VALUE.pack_into(self._view, place, value)
        return True

    def _take(self, view: memoryview, name: str, unit: str) -> int:
        number = len(self._places)
        start = _COUNT.size + number * _SLOT_BYTES
        _NAMES.pack_into(view, start, name.encode()[:NAME_MAX], unit.encode()[:UNIT_MAX])
        _VALUE.pack_into(view, start + _NAMES.size, float("nan"))
        self._places[name] = start + _NAMES.size
        _COUNT.pack_into(view, 0, number + 1)
        return self._places[name]


def read_gauges(record: bytes) -> list[Gauge]:
    """All numbers of a table, in the order in which they came."""
    (count,) = _COUNT.unpack_from(record)
    found = []
    for number in range(min(count, SLOTS)):
        start = _COUNT.size + number * _SLOT_BYTES
        name, unit = _NAMES.unpack_from(record, start)
        (value,) = _VALUE.unpack_from(record, start + _NAMES.size)
        found.append(Gauge(_text(name), _text(unit), value))
    return found


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
