"""What a rank printed, byte for byte: `holdfast logs`, and `Tail`, which reads a log while it grows."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_TAIL_BYTES_MAX = 64 << 20
_GONE = b"\n[holdfast: more was printed than a log keeps, and what stood here is gone]\n"


class Tail:
    """Reads a log as it grows. It holds open files and no names, so that a rotation loses no byte and repeats none. Memory is bounded, and so is what
    rotated files it keeps on the disk: of a log that is read more slowly than it is written, parts are missed, and it says so."""

    def __init__(self, path: Path, offset: int | None = None) -> None:
        """`offset`: where to begin in the newest file. None: at the beginning of the oldest."""
        self._path = path
        self._parts: deque[FileIO] = deque()  # What is being read, and what was begun after it, oldest first.
        self._gap = False  # Between the first part and the second one.
        self._find_newer()
        if offset is not None:
            self._drop_all_but_newest(offset)

    def read(self, limit: int = _CHUNK_BYTES) -> bytes:
        """The next bytes, at most so many; none while there are no more."""
        while not (data := self._read_part(limit)):
            if len(self._parts) < 2:
                self._find_newer()
                if len(self._parts) < 2:
                    return self._read_part(limit)
                continue  # More may have been written to the old one before the new one was begun.
            self._parts.popleft().close()
            if self._gap:
                self._gap = False
                return _GONE
        return data

    def left_bytes(self) -> int:
        """How much is still to be read."""
        if len(self._parts) < 2:
            self._find_newer()
        return sum(_size(part) - part.tell() for part in self._parts)

    def skip_to_last(self, lines_bytes: int) -> int:
        """Leave out what is left but for the last lines, so many bytes at most. Returns how many bytes were left out."""
        left = self.left_bytes()
        if left > lines_bytes:
            self._drop_all_but_newest(max(0, _size(self._parts[-1]) - lines_bytes))
            start = self._parts[0].tell()
            self._parts[0].seek(start + self._read_part(lines_bytes).find(b"\n") + 1)
        return left - self.left_bytes()

    def close(self) -> None:
        while self._parts:
            self._parts.popleft().close()

    def _read_part(self, limit: int) -> bytes:
        return self._parts[0].read(limit) or b"" if self._parts else b""

    def _find_newer(self) -> None:
        """Open what was begun since."""
        known = _inode(self._parts[-1]) if self._parts else None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == known:
                return  # So it is nearly always; to list the directory ten times a second would cost more than to read the log.
        newer: list[FileIO] = []  # Newest first: a rotation while we look makes us see a part twice, and miss none.
        for path in (self._path, *reversed(_rotated(self._path))):
            with contextlib.suppress(FileNotFoundError):
                part = path.open("rb", buffering=0)
                if newer and _inode(newer[-1]) == _inode(part):
                    part.close()
                elif _inode(part) == known:
                    part.close()
                    break
                else:
                    newer.append(part)
        else:
            self._gap = known is not None and bool(newer)
        self._parts.extend(reversed(newer))

    def _drop_all_but_newest(self, offset: int) -> None:
        while len(self._parts) > 1:
            self._parts.popleft().close()
        self._gap = False
        for newest in self._parts:
            newest.seek(offset)


def print_log(path: Path, lines: int | None, *, follow: bool, alive: Callable[[], bool]) -> None:
    tail = Tail(path, None if lines is None else offset_of_last(path, lines))
    more = True
    while more:
        more = follow and alive()
        while data := tail.read():
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if more:
            time.sleep(0.1)


def log_records(path: Path, lines: int | None) -> list[str]:
    """The newest file's lines, as text."""
    with path.open("rb") as file:
        file.seek(0 if lines is None else offset_of_last(path, lines))
        return file.read(_TAIL_BYTES_MAX).decode(errors="replace").splitlines()


def _rotated(path: Path) -> list[Path]:
    """Older files of the same log, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda one: int(one.suffix[1:]), reverse=True)


def _size(part: FileIO) -> int:
    return os.fstat(part.fileno()).st_size


def _inode(part: FileIO) -> int:
    return os.fstat(part.fileno()).st_ino


def offset_of_last(path: Path, lines: int) -> int:
    """Where the last lines begin; bounded in memory, however long a line is."""
    if not path.exists():
        return 0
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
