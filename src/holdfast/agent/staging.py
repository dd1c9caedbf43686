"""Staging: files the job named are on the node's own disk before its ranks start: verified, resumed where it was broken off, and kept for the next attempt.

    source ─► blocks, each with its checksum ─► NAME.part, synced ─► read back and compared ─► NAME, with a record of what it was made from

It begins when the agent does, so a spare has everything before it is needed; a start waits for it. What lies on the node's disk already is linked and not
copied. A source that changes is staged again at the next start.

Is wrong    when somebody changes a source and sets its size and time back to what they were: that is not seen.
Costs       one thread, and the source read once, the copy once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from holdfast.domain.job import Stage
from holdfast.errors import HoldfastError
from holdfast.wire.messages import Staged

STAGED: Final = "staged"  # Below the node's scratch directory.
BLOCK_BYTES: Final = 8 << 20
_RECORDS: Final = ".records"
_SPARE_BYTES: Final = 64 << 20  # Left free: a full disk costs the node more than what was staged is worth.


class NotStaged(HoldfastError):
    """It cannot be, and will not be before somebody does something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    source: Path
    target: Path
    record: Path
    made_from: tuple[int, int]  # Size and time of the source.


class Staging:
    """Ask `ready` before every start."""

    def __init__(self, stages: Sequence[Stage], into: Path, say: Callable[[str], None]) -> None:
        self._stages, self._into, self._say = stages, into, say
        self._work: asyncio.Task[None] | None = None
        self._done_bytes = self._total_bytes = 0
        self._error = ""
        self._leaving = False

    async def ready(self) -> None:
        """All of it is there and is what it was made from; OSError or NotStaged when it cannot be. Several who ask at once wait for the same work."""
        if self._stages and (self._work is None or self._work.done()):
            self._work = asyncio.create_task(asyncio.to_thread(self._stage))
        if self._work is not None:
            await asyncio.shield(self._work)

    async def begin(self) -> None:
        """Ahead of time. What goes wrong is said, and goes wrong again for whoever needs it."""
        try:
            await self.ready()
        except (OSError, NotStaged) as error:
            self._say(f"staging is tried again when ranks are to start: {error}")

    def stop(self) -> None:
        self._leaving = True

    def reading(self) -> Staged | None:
        return Staged(done_bytes=self._done_bytes, total_bytes=self._total_bytes, error=self._error) if self._stages else None

    def _stage(self) -> None:
        self._error = ""
        try:
            for path in (self._into, self._into / _RECORDS):
                path.mkdir(parents=True, exist_ok=True)
            files = [file for stage in self._stages for file in self._files(stage)]
            missing = [file for file in files if not _is_there(file)]
            self._total_bytes = sum(file.made_from[0] for file in files)
            self._done_bytes = self._total_bytes - sum(file.made_from[0] for file in missing)
            self._check_room(missing)
            for file in missing:
                self._copy(file)
            if missing:
                self._say(f"staged {len(missing)} files in {self._into}; {len(files) - len(missing)} were there")
        except (OSError, NotStaged) as error:
            self._error = str(error)
            raise

    def _files(self, stage: Stage) -> Iterator[_File]:
        """Those to be copied; what is on the node's disk already is linked."""
        source, target = Path(stage.source), self._into / stage.target
        if not source.exists():
            raise NotStaged(f"--stage {source}: it is not there on this node; make it readable there, or leave it out")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.stat().st_dev == self._into.stat().st_dev:
            if not target.is_symlink() or target.readlink() != source:
                target.unlink(missing_ok=True)
                target.symlink_to(source)
                self._say(f"{source} is on this node's disk already: linked as {target}, and not copied")
            return
        inside = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        for path in inside:
            below = target / path.relative_to(source) if source.is_dir() else target
            seen = path.stat()
            record = self._into / _RECORDS / xxhash.xxh3_128_hexdigest(os.fsencode(below))
            yield _File(source=path, target=below, record=record, made_from=(seen.st_size, seen.st_mtime_ns))

    def _check_room(self, files: Sequence[_File]) -> None:
        begun = sum(part.stat().st_size for file in files if (part := _part(file.target)).exists())
        needed, free = sum(file.made_from[0] for file in files) - begun, shutil.disk_usage(self._into).free
        if files and needed + _SPARE_BYTES > free:
            raise NotStaged(f"{needed / 1e9:.1f} GB are to be staged in {self._into}, and {free / 1e9:.1f} GB are free: make room, or stage less")

    def _copy(self, file: _File) -> None:
        part = _part(file.target)
        part.parent.mkdir(parents=True, exist_ok=True)
        sums = _sums_so_far(file)
        self._done_bytes += len(sums) * BLOCK_BYTES  # A block that is not whole is copied again.
        with file.source.open("rb") as source, part.open("r+b" if part.exists() else "w+b") as copy, _part(file.record).open("w") as record:
            copy.truncate(len(sums) * BLOCK_BYTES)
            source.seek(len(sums) * BLOCK_BYTES)
            copy.seek(0, os.SEEK_END)
            record.write("".join(f"{line}\n" for line in (_heading(file), *sums)))
            while block := source.read(BLOCK_BYTES):
                if self._leaving:
                    raise OSError("the agent leaves")
                sums.append(_sum(block))
                copy.write(block)
                copy.flush()
                record.write(f"{sums[-1]}\n")
                record.flush()
                self._done_bytes += len(block)
            os.fsync(copy.fileno())
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # So that what is compared comes from the disk.
            copy.seek(0)
            now = os.fstat(source.fileno())
            if (now.st_size, now.st_mtime_ns) != file.made_from:
                raise OSError(f"{file.source} changed while it was staged")
            if any(_sum(copy.read(BLOCK_BYTES)) != known for known in sums):
                _part(file.record).unlink()
                raise OSError(f"{part} does not read back as it was written: see to the disk of this node")
        part.rename(file.target)
        _part(file.record).rename(file.record)  # Last: a copy without its record is made again.


def _is_there(file: _File) -> bool:
    """Whole, and made from the source as it is now."""
    with contextlib.suppress(OSError):
        size = file.target.stat().st_size
        with file.record.open() as record:
            return size == file.made_from[0] and record.readline().strip() == _heading(file)
    return False


def _sums_so_far(file: _File) -> list[str]:
    """Of the whole blocks that an earlier try left and that read back as they were written."""
    found: list[str] = []
    with contextlib.suppress(OSError), _part(file.record).open() as record, _part(file.target).open("rb") as part:
        if record.readline().strip() != _heading(file):
            return []
        for line in record:
            block = part.read(BLOCK_BYTES)
            if len(block) < BLOCK_BYTES or _sum(block) != line.strip():
                break
            found.append(line.strip())
    return found


def _heading(file: _File) -> str:
    return json.dumps({"source": str(file.source), "size": file.made_from[0], "mtime_ns": file.made_from[1]})


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _sum(block: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(block)
