"""A beat: what a worker says of itself, many times a second, at no cost.

One fixed record in a small file of shared memory, written by the worker and read by the agent from outside: no lock, no system call. So a worker
that is stopped, sits in a collective or holds the GIL can still be read. The sequence number stands at both ends of the record. The writer changes
the one at the back first and the one at the front last, a reader copies front to back: if both numbers are the same, everything between them was
still; if they differ the reader met the writer half-way, and calls the record torn.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from holdfast.domain.gauges import TABLE_BYTES

_BODY: Final = struct.Struct("IIqqqq24sqqddddqqqqd")  # Native, which is one store a field; the standard sizes are written byte by byte.
_SEQUENCE: Final = struct.Struct("Q")
_BACK: Final = _SEQUENCE.size + _BODY.size
BEAT_BYTES: Final = _BACK + _SEQUENCE.size
TABLE_AT: Final = -(-BEAT_BYTES // 64) * 64  # Behind the beat, on a line of its own: the worker's gauge table.
BEAT_FILE_BYTES: Final = TABLE_AT + TABLE_BYTES
(UNREPORTED,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8_4E4F_4E45_0000))  # A NaN that no arithmetic gives: no such number was reported yet.
BEAT_VERSION: Final = 2

GUARDED: Final = 1  # Flag: the worker has our trainer inside, so its checkpoints survive a kill at any moment.
STOPPING: Final = 2  # Flag: the worker was asked to stop, and will leave at the next step boundary.
RESTORED: Final = 4  # Flag: the worker is through its restore and has entered its loop.
FOLLOWS: Final = 8  # Flag: how often the worker saves is for control to say, and it hears it.
REJOINS: Final = 16  # Flag: the worker can leave a broken gang and join the next one in the same process.
WAITS: Final = 32  # Flag: it has left one after `step`, and waits for its new place;
WHOLE: Final = 128  # and holds what there was after that step whole.
SHARDED: Final = 64  # Flag: it trains a part of what nobody holds whole, so that one who leaves a broken gang has nothing to give.
WAS_FINITE: Final = 256  # Flag: a loss was finite that it reported since it began or resumed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One reading of a worker. Times are CLOCK_MONOTONIC, which all processes of a machine share."""

    flags: int = 0
    generation: int = 0
    step: int = 0  # Optimizer steps finished since the job began, over all its generations.
    steps_total: int = 0  # 0 when the script did not say.
    step_started: int = 0  # The step this process resumed from.
    phase: str = ""  # "start", "restore", "step", "save", "eval", or a name of the user's own.
    phase_since_ns: int = 0
    at_ns: int = 0
    loss: float = UNREPORTED
    grad_norm: float = UNREPORTED
    data_wait_s: float = 0.0  # Since the process started, like the next two.
    save_s: float = 0.0
    samples: int = 0  # Global position in the data: samples consumed, not prefetched.
    saved_step: int = -1  # The newest step whose shard of this rank is durable.
    restored_step: int = -1
    save_every: int = -1  # In steps; 0: only when asked. -1: nothing is saved.
    stall_s: float = float("nan")  # What a save costs training: the mean of the last few.


def pack_beat(buffer: memoryview, seq: int, beat: Beat) -> None:
    """Write a whole record; `seq` must grow with every call."""
    pack_fields(
        buffer, seq, beat.flags, beat.generation, beat.step, beat.steps_total, beat.step_started,
        beat.phase.encode()[:24], beat.phase_since_ns, beat.at_ns, beat.loss, beat.grad_norm, beat.data_wait_s, beat.save_s,
        beat.samples, beat.saved_step, beat.restored_step, beat.save_every, beat.stall_s,
    )  # fmt: skip


def pack_fields(buffer: memoryview, seq: int, *fields: int | float | bytes) -> None:
    """Write the fields of a beat in their order, the phase encoded: for the worker, which has no time to build a `Beat` at every step."""
    _SEQUENCE.pack_into(buffer, _BACK, seq)
    _BODY.pack_into(buffer, _SEQUENCE.size, BEAT_VERSION, *fields)
    _SEQUENCE.pack_into(buffer, 0, seq)


def read_beat(record: bytes) -> Beat | None:
    """The beat in `record`; None when there is none yet, when it is torn, or when it is of a version we do not know."""
    (seq,), (seq_back,) = _SEQUENCE.unpack_from(record), _SEQUENCE.unpack_from(record, _BACK)
    if seq == 0 or seq != seq_back:
        return None
    (version, flags, generation, step, steps_total, step_started, phase, phase_since_ns, at_ns,
     loss, grad_norm, data_wait_s, save_s, samples, saved_step, restored_step, save_every, stall_s) = _BODY.unpack_from(record, _SEQUENCE.size)  # fmt: skip
    if version != BEAT_VERSION:
        return None
    return Beat(
        flags=flags, generation=generation, step=step, steps_total=steps_total, step_started=step_started,
        phase=phase.rstrip(b"\0").decode(errors="replace"), phase_since_ns=phase_since_ns, at_ns=at_ns, loss=loss, grad_norm=grad_norm,
        data_wait_s=data_wait_s, save_s=save_s, samples=samples, saved_step=saved_step, restored_step=restored_step,
        save_every=save_every, stall_s=stall_s,
    )  # fmt: skip
