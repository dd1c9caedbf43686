"""Disks for tests: one on which the process dies before the n-th operation, one that remembers what a power cut would leave."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoint.commit import Shard, commit
from holdfast.checkpoint.disk import Disk, Output
from holdfast.checkpoint.layout import rank_file
from holdfast.checkpoint.remove import Retention, prune

RANKS = 2


def save_step(disk: Disk, checkpoints: Path, step: int, rank: int, *, generation: int = 1, keep: int = 1) -> bool:
    """One rank's save of a step with small files; whether it completed the checkpoint."""

    def fill(output: Output) -> None:
        for piece in range(3):
            output.write(f"step {step} rank {rank} piece {piece}\n".encode() * 50)

    shard = Shard(step=step, generation=generation, world_size=RANKS, rank=rank)
    complete = commit(disk, checkpoints, shard, {rank_file(rank): fill}) is not None
    if complete:
        prune(disk, checkpoints, Retention(keep=keep, restored=(generation, 0)), generation=generation)
    return complete


class WatchedDisk(Disk):
    """Calls `before` ahead of every operation, with what is about to happen."""

    def __init__(self, before: Callable[..., None]) -> None:
        self._before = before

    def make_directory(self, path: Path) -> None:
        self._before("make_directory", path)
        super().make_directory(path)

    def create(self, path: Path) -> io.RawIOBase:
        self._before("create", path)
        return _WatchedFile(path, self._before)

    def sync_file(self, file: io.RawIOBase) -> None:
        assert isinstance(file, _WatchedFile)
        self._before("sync_file", file.path)
        super().sync_file(file)

    def rename(self, old: Path, new: Path) -> None:
        self._before("rename", old, new)
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._before("sync_directory", path)
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        self._before("remove", path)
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._before("remove_directory", path)
        super().remove_directory(path)


class _WatchedFile(io.FileIO):
    def __init__(self, path: Path, before: Callable[..., None]) -> None:
        super().__init__(path, "wb")
        self.path, self._before = path, before

    def write(self, data: Any, /) -> int:
        self._before("write", self.path, bytes(data))
        return super().write(data)


def dying_disk(operations: int) -> Disk:
    """The process ends, without a word and without clean-up, ahead of operation number `operations`."""
    left = operations

    def count(*_: object) -> None:
        nonlocal left
        if left == 0:
            os._exit(137)
        left -= 1

    return WatchedDisk(count)


@dataclass
class _File:
    content: bytes = b""
    durable: bytes = b""  # What was synced.


@dataclass
class PowerCut:
    """The disk after a trace of operations and a power cut.

    What was synced is there. Of the rest the disk may have kept anything, in any order: `keeps` says for each unsynced change of a directory
    whether it made it. Unsynced content of a file is lost.
    """

    keeps: Callable[[], bool]
    _now: dict[Path, _File] = field(default_factory=dict)
    _durable: dict[Path, _File] = field(default_factory=dict)
    _pending: list[tuple[Path, _File | None]] = field(default_factory=list)

    def replay(self, trace: list[tuple[Any, ...]]) -> None:
        for name, path, *rest in trace:
            getattr(self, f"_{name}")(path, *rest)

    def leave(self, root: Path) -> None:
        """Write what the power cut left under `root`, with paths as in the trace."""
        entries = dict(self._durable)
        for path, file in self._pending:
            if self.keeps():
                self._put(entries, path, file)
        for path, file in entries.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(file.durable)

    def _make_directory(self, path: Path) -> None:
        pass  # A directory without files says nothing, and one with files is made by them.

    def _create(self, path: Path) -> None:
        self._change(path, _File())

    def _write(self, path: Path, data: bytes) -> None:
        self._now[path].content += data

    def _sync_file(self, path: Path) -> None:
        self._now[path].durable = self._now[path].content

    def _rename(self, old: Path, new: Path) -> None:
        file = self._now[old]
        self._change(new, file)
        self._change(old, None)

    def _remove(self, path: Path) -> None:
        if path in self._now:
            self._change(path, None)

    def _remove_directory(self, path: Path) -> None:
        pass

    def _sync_directory(self, path: Path) -> None:
        for changed, file in self._pending:
            if changed.parent == path:
                self._put(self._durable, changed, file)
        self._pending = [(changed, file) for changed, file in self._pending if changed.parent != path]

    def _change(self, path: Path, file: _File | None) -> None:
        self._put(self._now, path, file)
        self._pending.append((path, file))

    @staticmethod
    def _put(entries: dict[Path, _File], path: Path, file: _File | None) -> None:
        if file is None:
            entries.pop(path, None)
        else:
            entries[path] = file
