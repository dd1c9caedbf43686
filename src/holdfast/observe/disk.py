"""Disks: what is free, and whether a small file can be written and read back. Each directory has probes of its own, so that one that hangs holds up no other.

`DiskSpace`
Sees        statvfs of a directory.
Says        disk_free_bytes, disk_size_bytes, disk_inodes_free_ratio, disk_read_only; the event `filesystem_read_only` when one that could be written
            cannot be any more.
Is wrong    about quotas: they are not seen. The inode ratio is absent where inodes are made as needed (btrfs, NFS without them).
Costs       one call every 10 s, 2 µs.

`DiskWrite`
Sees        a file of 4 KiB: written, synced, dropped from the cache, read back, compared, removed.
Says        disk_write_seconds; disk_errors_total, and the event `disk_error` with the errno whenever the way it fails changes.
Is wrong    about reading: a kernel that keeps the page all the same (tmpfs has nowhere else to put it) answers from memory.
Costs       one sync every 30 s, and every 6 s while it takes over a second or fails: whether a disk is slow or was slow once is soon known. On a disk that is
            busy with a checkpoint it waits its turn: latency then says how busy it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.probe import Seen

_FILE_BYTES: Final = 4096
_EVERY_S: Final = 30.0
_SLOW_S: Final = 1.0
_SLOW_EVERY_S: Final = 6.0


class DiskSpace:
    every_s = 10.0
    timeout_s = 10.0

    def __init__(self, directory: Path, wall: Callable[[], float] = time.time) -> None:
        self.name = f"disk space {directory}"
        self.doing = f"statvfs of {directory}"
        self._directory = directory
        self._wall = wall
        self._read_only: bool | None = None

    def look(self) -> list[Seen]:
        of = str(self._directory)
        try:
            seen = os.statvfs(self._directory)
        except OSError:
            return []  # Not there yet, or not for us.
        read_only = bool(seen.f_flag & os.ST_RDONLY)
        was, self._read_only = self._read_only, read_only
        found: list[Seen] = [
            Signal("disk_free_bytes", float(seen.f_bavail * seen.f_frsize), of),  # What is kept back for root is not free to us.
            Signal("disk_size_bytes", float(seen.f_blocks * seen.f_frsize), of),
            Signal("disk_read_only", float(read_only), of),
        ]
        if seen.f_files:
            found.append(Signal("disk_inodes_free_ratio", seen.f_favail / seen.f_files, of))
        if was is False and read_only:
            found.append(KernelEvent(kind="filesystem_read_only", message=f"{of} cannot be written any more: it is mounted read-only", at=self._wall(), of=of))
        return found


class DiskWrite:
    timeout_s = 20.0

    def __init__(self, directory: Path, node: str = "", wall: Callable[[], float] = time.time) -> None:
        self.name = f"disk write {directory}"
        self.every_s = _EVERY_S
        self.doing = ""
        self._directory = directory
        # A directory may be shared: by nodes, by agents of one machine.
        self._path = directory / f".holdfast-probe-{node or 'node'}-{os.getpid()}"
        self._wall = wall
        self._failed: Counter[int] = Counter()  # By errno.
        self._last: int | None = None

    def look(self) -> list[Seen]:
        of = str(self._directory)
        began = time.perf_counter()
        code = self._try()
        took_s = time.perf_counter() - began
        self.every_s = _SLOW_EVERY_S if code is not None or took_s > _SLOW_S else _EVERY_S
        found: list[Seen] = []
        if code is None:
            found.append(Signal("disk_write_seconds", took_s, of))
        else:
            self._failed[code] += 1
            if code != self._last:
                found.append(KernelEvent(kind="disk_error", message=self._sentence(code), at=self._wall(), of=of, code=code))
        self._last = code
        failing = self._failed.total() - self._failed[errno.ENOSPC]  # A full disk does what it should; how full it is, is told beside.
        return [*found, Signal("disk_errors_total", float(failing), of)]

    def failures(self) -> dict[int, int]:
        """How often it failed, by errno. What was read back and differs counts as EBADMSG."""
        return dict(self._failed)

    def _try(self) -> int | None:
        """The errno of what failed; None when all went well."""
        wanted = os.urandom(16) * (_FILE_BYTES // 16)  # Another one each time, so that an old page is not taken for the new one.
        try:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            # A name in a directory that others may write to could be a link to a file of ours by now: it is never followed.
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return error.errno or errno.EIO
        try:
            return None if self._written_and_read(fd, wanted) else errno.EBADMSG
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            with contextlib.suppress(OSError):
                os.close(fd)
            with contextlib.suppress(OSError):
                self._path.unlink()
            self.doing = ""

    def _written_and_read(self, fd: int, wanted: bytes) -> bool:
        self.doing = f"write to {self._path}"
        if os.write(fd, wanted) != len(wanted):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # A short write is how a disk says that it is full now.
        self.doing = f"fsync of {self._path}"
        os.fsync(fd)
        with contextlib.suppress(OSError):  # Advice; a file system need not know it.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.doing = f"read of {self._path}"
        return os.pread(fd, len(wanted) + 1, 0) == wanted

    def _sentence(self, code: int) -> str:
        times = f"{self._failed[code]} times so far"
        if code == errno.EBADMSG:
            return f"a file in {self._directory} was written and synced, and reads back differently; {times}"
        return f"a small file in {self._directory} could not be written and read back: {errno.errorcode.get(code, code)}, {os.strerror(code)}; {times}"
