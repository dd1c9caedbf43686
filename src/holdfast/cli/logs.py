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
    if lines == 0:
        return path.stat().st_size
    starts: deque[int] = deque([0], maxlen=lines + 1)
    position = 0
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            at = data.find(b"\n")
            while at >= 0:
                starts.append(position + at + 1)
                at = data.find(b"\n", at + 1)
            position += len(data)
    if starts[-1] == position and len(starts) > 1:
        return starts[0] if len(starts) <= lines else starts[len(starts) - lines - 1]
    return starts[-lines] if len(starts) >= lines else starts[0]
