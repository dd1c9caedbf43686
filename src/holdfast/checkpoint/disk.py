"""Every way in which a save touches the disk, in one small class.

They are gathered here so that a test can stop the world before any one of them, and can say what a power cut at that moment would leave behind.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.checkpoint.digest import digest
from holdfast.checkpoint.layout import WrittenFile

_BUFFER_BYTES: Final = 1 << 20


class Disk:
    """The file operations of the commit protocol, each one a point at which the machine may die."""

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> io.RawIOBase:
        return io.FileIO(path, "wb")

    def sync_file(self, file: io.RawIOBase) -> None:
        os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # Somebody else removed it, or still has a file in it.
            path.rmdir()


class Output(io.RawIOBase):
    """A file that is counted and hashed as it is written, so that state is never held twice.

    A failed write is kept and told by `finish`: torch's writer is C++ and does not survive an exception from below in good order.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._name = disk, path.name
        self._raw = disk.create(path)
        self._buffer: BinaryIO = io.BufferedWriter(self._raw, _BUFFER_BYTES)
        self._algorithm, self._digest = digest()
        self._size_bytes = 0
        self._failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        size_bytes = memoryview(data).nbytes
        if self._failure is None:
            try:
                self._buffer.write(data)
            except OSError as failure:
                self._failure = failure
            self._digest.update(data)
            self._size_bytes += size_bytes
        return size_bytes

    def finish(self) -> WrittenFile:
        """Flush and sync; what was written, or the first failure."""
        if self._failure is not None:
            raise self._failure
        self._buffer.flush()
        self._disk.sync_file(self._raw)
        return WrittenFile(name=self._name, size_bytes=self._size_bytes, algorithm=self._algorithm, checksum=self._digest.hexdigest())

    def close(self) -> None:
        """Let go of the file. After a failure there is unwritten data left, and the same failure again, which is already told."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._buffer.close()
            self._raw.close()
        super().close()


def write_whole(disk: Disk, path: Path, content: bytes, *, temporary: Path) -> None:
    """Put a small file in place: whole or not at all, its content durable before its name is."""
    try:
        with Output(disk, temporary) as output:
            output.write(content)
            output.finish()
    except OSError:
        disk.remove(temporary)
        raise
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
