"""`holdfast logs`: what a rank printed, byte for byte."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_TAIL_BYTES_MAX = 64 << 20


def print_log(path: Path, lines: int | None, *, follow: bool, alive: Callable[[], bool]) -> None:
    out = sys.stdout.buffer
    older = [] if lines is not None else _rotated(path)
    for part in older:
        _copy(part, 0)
    offset = 0 if lines is None else _offset_of_last(path, lines)
    offset = _copy(path, offset)
    while follow:
        more = alive()
        if path.stat().st_size < offset:
            offset = 0  # Rotated.
        offset = _copy(path, offset)
        if not more:
            return
        out.flush()
        time.sleep(0.1)


def log_records(path: Path, lines: int | None) -> list[str]:
    """The newest file's lines, as text."""
    with path.open("rb") as file:
        file.seek(0 if lines is None else _offset_of_last(path, lines))
        return file.read(_TAIL_BYTES_MAX).decode(errors="replace").splitlines()


def _rotated(path: Path) -> list[Path]:
    """Older files of the same log, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda one: int(one.suffix[1:]), reverse=True)


def _copy(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(_CHUNK_BYTES):
            sys.stdout.buffer.write(data)
            offset += len(data)
    sys.stdout.buffer.flush()
    return offset


def _offset_of_last(path: Path, lines: int) -> int:
    """Where the last lines begin; bounded in memory, however long a line is."""
    starts: deque[int] = deque(maxlen=lines)
    position, line_begins = 0, True
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            at = 0
            while at < len(data):
                if line_begins:
                    starts.append(position + at)
                end = data.find(b"\n", at)
                line_begins = end >= 0
                at = end + 1 if line_begins else len(data)
            position += len(data)
    return starts[0] if starts else position
