"""Every way in which a save touches the disk, in one small class.

They are gathered here so that a test can stop the world before any one of them, and can say what a power cut at that moment would leave behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
import threading
from itertools import takewhile
from pathlib import Path
from typing import Final

from holdfast.checkpoint.digest import Bytes

_DIRECT_BYTES_MIN: Final = 1 << 20
_STAGING_BYTES: Final = 8 << 20
_BLOCK_BYTES: Final = 4096


class Disk:
    """The file operations of the commit protocol, each one a point at which the machine may die."""

    writers = 4  # How many chunks are written at a time.

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def create(self, path: Path) -> io.FileIO:
        return io.FileIO(path, "wb")

    def write(self, file: io.FileIO, data: Bytes) -> None:
        view = memoryview(data)
        if view.nbytes >= _DIRECT_BYTES_MIN:
            view = view[_write_past_the_cache(file, view) :]
        while view.nbytes:
            view = view[file.write(view) :]

    def sync_file(self, file: io.FileIO) -> None:
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


_staging = threading.local()


def _write_past_the_cache(file: io.FileIO, view: memoryview) -> int:
    """Write whole blocks straight to the device; how many bytes that were, 0 where the file system knows no such way.

    The page cache would only be in the way: what was saved is not read again soon, and what training has cached would be thrown out for it.
    """
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    done = 0
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
        if not hasattr(_staging, "memory"):
            _staging.memory = memoryview(mmap.mmap(-1, _STAGING_BYTES))  # The device wants memory that begins at a page.
        while count := min(len(view) - done, _STAGING_BYTES) // _BLOCK_BYTES * _BLOCK_BYTES:
            _staging.memory[:count] = view[done : done + count]
            written = file.write(_staging.memory[:count])
            done += written
            if written % _BLOCK_BYTES:
                break
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return done


def read_past_the_cache(file: io.FileIO) -> None:
    """Let what follows be read straight from the device, which is faster and throws nothing out of the cache, unless the cache has it already.

    To be read with `read_some`, into memory that begins at a page.
    """
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # Else the question alone would fetch more.
    try:
        os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        pass  # A file system that cannot be asked.
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_NORMAL)


def read_some(file: io.FileIO, view: memoryview) -> int:
    """How many bytes were read; 0 at the end. What the device does not read straight, a part of a block or to memory that it cannot reach, the cache does."""
    try:
        return file.readinto(view) or 0
    except OSError as error:
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
            raise
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return file.readinto(view) or 0


def make_directories(disk: Disk, path: Path) -> None:
    """Make a directory and those above it that are missing. All but the deepest are durable then; that one is when its parent is synced.

    From the top down, and nothing is put into one that is not durable: so whoever finds some of them made by somebody who died has only the deepest to sync.
    """
    missing = list(takewhile(lambda one: not one.exists(), (path, *path.parents)))
    for one in reversed(missing):
        with contextlib.suppress(PermissionError):  # What we may not read is none that we have just made.
            disk.sync_directory(one.parent.parent)
        disk.make_directory(one)


def put_file(disk: Disk, path: Path, content: Bytes, *, temporary: Path, durable: bool = True) -> None:
    """Put a file in place: whole or not at all; if `durable`, its content before its name. The name is durable when the directory is synced."""
    try:
        with contextlib.closing(disk.create(temporary)) as file:
            disk.write(file, content)
            if durable:
                disk.sync_file(file)
    except OSError:
        disk.remove(temporary)
        raise
    disk.rename(temporary, path)
