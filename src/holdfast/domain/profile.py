"""A profile: where the time of a few steps went, on the slow ranks of a gang and on one healthy rank beside them.

A request travels through a record in shared memory, one for each rank: the agent writes, the worker looks at every step. As in a beat the sequence number
stands at both ends: a reader that finds two different ones met the writer half-way, and looks again at its next step.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

OWN_PARTS: Final = ("data", "compute", "optimizer", "save")  # What a rank does itself; in communication it waits for others.
PARTS: Final = (*OWN_PARTS, "communication")
STEPS: Final = 5  # As long as nobody says otherwise; one more before them warms the profiler up.
STEPS_MAX: Final = 50  # A trace of more opens in no browser.
NAME_MAX: Final = 120

_BODY: Final = struct.Struct(f"<qqd{NAME_MAX}s")
_SEQUENCE: Final = struct.Struct("<Q")
_BACK: Final = _SEQUENCE.size + _BODY.size
REQUEST_BYTES: Final = _BACK + _SEQUENCE.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Profile so many steps, in so much time at most, and leave what came of it in the directory of this name."""

    generation: int
    steps: int
    limit_s: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    name: str
    seconds: float  # A step, in itself: without the operators it called.
    calls: float  # A step.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """What one rank found out about itself."""

    rank: int
    node: str = ""
    generation: int
    first_step: int
    steps: int
    step_s: float
    parts: dict[str, float]  # Seconds a step; what could not be measured is left out.
    operators: tuple[Operator, ...] = ()  # The heaviest, heaviest first.
    device: str = "cpu"
    trace: str = ""  # The name of its file; empty: there is none, and `note` says why.
    trace_bytes: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One request and its answer, from the asking to the words."""

    number: int
    name: str  # Of its directory.
    generation: int
    asked_at: float
    because: str
    steps: int
    incident: int = 0  # The one it was taken for by itself; 0: somebody asked.
    wish: str = ""  # Whoever asked knows it by this.
    slow: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    ended_at: float | None = None
    ranks: tuple[RankProfile, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)  # Rank, as text, to why nothing came of it.
    bottleneck: str = ""
    says: tuple[str, ...] = ()  # The comparison in words.


def pack_request(record: memoryview, request: Request) -> None:
    seq = sequence(record) + 1
    _SEQUENCE.pack_into(record, _BACK, seq)
    _BODY.pack_into(record, _SEQUENCE.size, request.generation, request.steps, request.limit_s, request.name.encode())
    _SEQUENCE.pack_into(record, 0, seq)


def sequence(record: memoryview) -> int:
    """Another one when there is something new; 0 when nothing was ever written."""
    seq: int = _SEQUENCE.unpack_from(record)[0]
    return seq


def read_request(record: memoryview) -> Request | None:
    """What is asked; None when nothing is yet, or when it is just being written."""
    copy = bytes(record)
    (seq,), (seq_back,) = _SEQUENCE.unpack_from(copy), _SEQUENCE.unpack_from(copy, _BACK)
    if seq == 0 or seq != seq_back:
        return None
    generation, steps, limit_s, name = _BODY.unpack_from(copy, _SEQUENCE.size)
    return Request(generation=generation, steps=steps, limit_s=limit_s, name=name.rstrip(b"\0").decode(errors="replace"))


def answer_file(rank: int) -> str:
    """Written last, and whole or not at all: a `RankProfile`, or `because` alone when nothing came of it."""
    return f"rank-{rank}.json"
