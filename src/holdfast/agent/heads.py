"""Heads: which snapshots lie in a node's memory, and what stands at the beginning of each. Looked at many times a second, so that looking must cost little.

Files come and go rarely, and what is said in them changes often: the directory is listed only when it has changed, and files stay open between looks. One that
was removed gives its memory back at the next look.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

from holdfast.checkpoint.snapshot import HEAD_BYTES, Head, head_of

OWN: Final = re.compile(r"snapshot-(\d+)-[01]")
COPY: Final = re.compile(r"copy-(\d+)")
_JUST_NS: Final = 2_000_000_000  # A directory's time is that of the kernel's last tick, or of a clock that was set a little: it may change unseen for so long.
_NEVER: Final = -1


class Heads:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._of_ns = _NEVER  # When the directory had last changed as it was listed.
        self._found: dict[str, int] = {}
        self._own: list[tuple[Path, int]] = []
        self._copies: list[Path] = []
        self._files: dict[Path, _File] = {}

    def own(self) -> list[tuple[Path, int]]:
        """Files of this node's own ranks, and whose."""
        self._list()
        return self._own

    def copies(self) -> list[Path]:
        """Files that are held for other nodes."""
        self._list()
        return self._copies

    def of_own(self) -> list[tuple[Path, int, Head]]:
        return [(path, rank, head) for path, rank in self.own() if (head := self.head(path)) is not None]

    def head(self, path: Path) -> Head | None:
        """Of a file that was listed."""
        file = self._files.get(path)
        return file.head() if file is not None else None

    def _list(self) -> None:
        try:
            changed_ns = os.stat(self._directory).st_mtime_ns
        except FileNotFoundError:
            changed_ns = _NEVER
        if changed_ns == self._of_ns and time.time_ns() - changed_ns > _JUST_NS:
            return
        self._of_ns = changed_ns
        try:
            entries = list(os.scandir(self._directory))
        except FileNotFoundError:
            entries = []
        found = {entry.name: entry.inode() for entry in entries if OWN.fullmatch(entry.name) or COPY.fullmatch(entry.name)}
        if found != self._found or any(file.is_gone() for file in self._files.values()):
            self._found = found
            self._open(found)

    def _open(self, found: dict[str, int]) -> None:
        paths = {self._directory / name: inode for name, inode in sorted(found.items())}
        self._own = [(path, int(name[1])) for path in paths if (name := OWN.fullmatch(path.name))]
        self._copies = [path for path in paths if COPY.fullmatch(path.name)]
        for path in [path for path, file in self._files.items() if paths.get(path) != file.inode or file.is_gone()]:
            self._files.pop(path).close()
        for path in paths.keys() - self._files.keys():
            try:
                self._files[path] = _File(path)
            except OSError:  # It is gone already, which the next look sees.
                self._found = {}


class _File:
    """One that stays open, and its head as it was read last."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._fd).st_ino
        self._data = b""
        self._head: Head | None = None

    def head(self) -> Head | None:
        data = os.pread(self._fd, HEAD_BYTES, 0)
        if data != self._data:
            self._data, self._head = data, head_of(data)
        return self._head

    def is_gone(self) -> bool:
        """Whether it was removed; another of the same name may have got the same inode since."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        os.close(self._fd)
