"""What a person is told while other formats are read and written: how far it is, and the gist of what torch raised."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.checkpoint.digest import Bytes
from holdfast.checkpoint.disk import Disk

Told = Callable[[str, int, int], None]  # What goes on, how many bytes more are done, of how many in all.


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


@contextlib.contextmanager
def new_file(disk: Disk, path: Path, total: int, told: Told) -> Iterator[NewFile]:
    """A file to write, durable when this is left; its name is when the directory is synced."""
    with contextlib.closing(disk.create(path)) as raw:
        yield NewFile(disk, raw, total, told)
        disk.sync_file(raw)


class NewFile:
    """A file that tells how far it is written, with as much of a file about it as torch needs."""

    def __init__(self, disk: Disk, raw: io.FileIO, total: int, told: Told) -> None:
        self._disk, self._raw, self._total, self._told = disk, raw, total, told

    def write(self, data: Bytes) -> int:
        size = memoryview(data).nbytes
        self._disk.write(self._raw, data)
        self._told("writing", size, self._total)
        return size

    def tell(self) -> int:
        return self._raw.tell()

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Whoever opened it closes it, once it is durable."""


class OldFile(io.FileIO):
    """A file that tells how far it is read."""

    def __init__(self, path: Path, told: Told) -> None:
        super().__init__(path)
        self._total, self._told = path.stat().st_size, told

    def readinto(self, buffer: Any, /) -> int:
        count = super().readinto(buffer) or 0
        self._told("reading", count, self._total)
        return count


class ToldDisk(Disk):
    """Tells what is written to it."""

    def __init__(self, total: int, told: Told) -> None:
        self._total, self._told = total, told

    def write(self, file: io.FileIO, data: Bytes) -> None:
        super().write(file, data)
        self._told("writing", memoryview(data).nbytes, self._total)


def gist_of(error: BaseException) -> str:
    """The line of a long message that says what was seen."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0] if lines else type(error).__name__)[:200]


def disk_error_in(error: BaseException) -> OSError | None:
    """What the disk said, below what torch made of it."""
    inner: BaseException | None = next(iter(getattr(error, "failures", {}).values()), (error,))[0]
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__context__
    return inner
