"""The interval in shared memory: how many steps from one save to the next, and from which step on. The agent writes it, its workers look at every step.

One record a node, with the sequence number at both ends, as in a beat: a reader that finds two different ones met the writer half-way, and looks again at its
next step. All ranks must save the same steps, so a change names a step that none of them has reached.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_BODY: Final = struct.Struct("<qqq")
_SEQUENCE: Final = struct.Struct("<Q")
_BACK: Final = _SEQUENCE.size + _BODY.size
INTERVAL_BYTES: Final = _BACK + _SEQUENCE.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """From `from_step` on, the ranks of `generation` save every step that is a multiple of `every`."""

    generation: int
    from_step: int
    every: int


def pack_interval(record: memoryview, told: Told) -> None:
    seq = sequence(record) + 1
    _SEQUENCE.pack_into(record, _BACK, seq)
    _BODY.pack_into(record, _SEQUENCE.size, told.generation, told.from_step, told.every)
    _SEQUENCE.pack_into(record, 0, seq)


def sequence(record: memoryview) -> int:
    """Another one when there is something new; 0 when nothing was ever written."""
    seq: int = _SEQUENCE.unpack_from(record)[0]
    return seq


def read_interval(record: memoryview) -> Told | None:
    """What is told; None when nothing is yet, or when it is just being written."""
    copy = bytes(record)
    (seq,), (seq_back,) = _SEQUENCE.unpack_from(copy), _SEQUENCE.unpack_from(copy, _BACK)
    if seq == 0 or seq != seq_back:
        return None
    generation, from_step, every = _BODY.unpack_from(copy, _SEQUENCE.size)
    return Told(generation=generation, from_step=from_step, every=every)
