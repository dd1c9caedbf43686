"""Seen: where the job was when control looked last. One record, written over at every look, for those who ask about a job whose control is gone.

Not part of the truth, which is the journal: that holds events, and between two of them a job may train for hours.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

_RECORD_BYTES: Final = 128  # One write of so few bytes is seen whole or not at all, also when the writer is killed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    at: float
    step: int
    generation: int


def keep(path: Path, seen: Seen) -> None:
    """Writes the record. A disk that does not take it costs the job nothing."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, msgspec.json.encode(seen).ljust(_RECORD_BYTES), 0)
        finally:
            os.close(fd)


def last_seen(path: Path) -> Seen | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Seen)
    except (OSError, msgspec.DecodeError):
        return None
