"""Staging: files the job named are on the node's own disk before its ranks start: verified, resumed where it was broken off, and kept for the next attempt.

    source ─► blocks, each with its checksum ─► a part, synced ─► read back and compared ─► NAME, with a record of the source, the copy and the checksums

It begins when the agent does, so a spare has everything before it is needed; a start waits for it. What lies on the node's disk already is linked and not
copied. At each start source and copy are compared with the record: by size and times, that of the last change included, which nobody can set. A source that
changed is staged again; of a copy that changed, was torn or was broken off, the blocks that read back right stay. What the source no longer has goes. What only
the disk knows, a bit that was lost, is found by reading all of it in the background at a bounded rate, and mended from the source.

Is wrong    about a source on a file system that does not tell when a file was last changed: there other content of the same size and time is not seen.
Costs       one thread, and the source read once, the copy once; then 64 MB a second in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import xxhash

from holdfast.domain.job import Stage
from holdfast.errors import HoldfastError
from holdfast.wire.messages import Staged

STAGED: Final = "staged"  # Below the node's scratch directory.
BLOCK_BYTES: Final = 8 << 20
_RECORDS: Final = ".records"
_BYTES_PER_S: Final = 64 << 20  # In the background: the disk belongs to the training.
_PAUSE_S: Final = 600.0
_SPARE_BYTES: Final = 64 << 20  # Left free: a full disk costs the node more than what was staged is worth.


class NotStaged(HoldfastError):
    """It cannot be, and will not be before somebody does something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    source: Path
    target: Path
    record: Path
    made_from: tuple[int, int, int]  # Size, time and time of change of the source.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What is known of a copy. In its file a line for what it is made from, one for each block, and once it is whole one for the copy."""

    target: str
    made_from: tuple[int, int, int]
    sums: tuple[str, ...] = ()
    copy: tuple[int, int, int, int] | None = None  # The copy's number on its disk, size and times, when it was compared last.

    @property
    def heading(self) -> str:
        return json.dumps({"target": self.target, "made_from": self.made_from})

    def describes(self, copy: Path) -> bool:
        """Nobody has touched the copy since."""
        return self.copy is not None and self.copy == _seen(copy)

    def write(self, path: Path) -> None:
        lines = [self.heading, *self.sums, *([json.dumps(self.copy)] if self.copy is not None else [])]
        new = path.with_name(f"{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(path)


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

    async def run(self) -> None:
        """Look at all of it now and then."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            await self.look_through(asyncio.sleep)

    async def look_through(self, wait: Callable[[float], Awaitable[None]]) -> None:
        """Read everything once, and mend what is damaged, in its place: ranks may have it open. `wait` lets so many seconds pass."""
        for file in await asyncio.to_thread(self._all):
            known = _read_record(file.record)
            for number, its_sum in enumerate(known.sums if known is not None and known.describes(file.target) else ()):
                await wait(BLOCK_BYTES / _BYTES_PER_S)
                with contextlib.suppress(OSError):  # Gone meanwhile, it is looked at when it is staged again.
                    await asyncio.to_thread(self._mend, file, number, its_sum)

    def _mend(self, file: _File, number: int, its_sum: str) -> None:
        with file.target.open("r+b") as copy:
            known = _read_record(file.record)
            if known is None or not known.describes(file.target) or _sum(_block(copy, number)) == its_sum:
                return
            which = f"{file.target} was damaged at block {number} of {len(known.sums)}"
            with file.source.open("rb") as source:
                good = _block(source, number)
            if _sum(good) != its_sum:
                self._say(f"{which}, and {file.source} has changed since: it is staged again when ranks start")
                return
            copy.seek(number * BLOCK_BYTES)
            copy.write(good)
            copy.flush()
            os.fsync(copy.fileno())
        replace(known, copy=_seen(file.target)).write(file.record)
        self._say(f"{which}, and is mended from {file.source}")

    def _all(self) -> list[_File]:
        with contextlib.suppress(OSError, NotStaged):
            return [file for stage in self._stages for file in self._files(stage)]
        return []

    def _stage(self) -> None:
        self._error = ""
        try:
            for path in (self._into, self._into / _RECORDS):
                path.mkdir(parents=True, exist_ok=True)
            files = [file for stage in self._stages for file in self._files(stage)]
            removed = self._remove_all_but({str(file.target) for file in files})
            missing = [file for file in files if not _is_there(file)]
            self._total_bytes = sum(file.made_from[0] for file in files)
            self._done_bytes = self._total_bytes - sum(file.made_from[0] for file in missing)
            self._check_room(missing)
            for file in missing:
                self._copy(file)
            if missing or removed:
                gone = f"; {removed} that are no longer asked for are removed" if removed else ""
                self._say(f"staged {len(missing)} files in {self._into}; {len(files) - len(missing)} were there{gone}")
        except (OSError, NotStaged) as error:
            self._error = str(error)
            raise

    def _remove_all_but(self, targets: set[str]) -> int:
        """What we made and nobody asks for any more. What the job itself put beside it is the job's."""
        removed = 0
        for path in sorted((self._into / _RECORDS).iterdir()):
            known = _read_record(path)
            if known is not None and known.target in targets and path.suffix != ".new":
                continue
            path.unlink()
            if known is None or known.target in targets:
                continue
            target = Path(known.target)
            for made in (target, _part(target)):
                if made.is_file() and not made.is_symlink():
                    made.unlink()
                    removed += 1
            with contextlib.suppress(OSError):  # Not empty.
                for above in target.relative_to(self._into).parents[:-1]:
                    (self._into / above).rmdir()
        return removed

    def _files(self, stage: Stage) -> Iterator[_File]:
        """Those to be copied; what is on the node's disk already is linked."""
        source, target = Path(stage.source), self._into / stage.target
        if not source.exists():
            raise NotStaged(f"--stage {source}: it is not there on this node; make it readable there, or leave it out")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.stat().st_dev == self._into.stat().st_dev:
            if not target.is_symlink() or target.readlink() != source:
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                target.unlink(missing_ok=True)
                target.symlink_to(source)
                self._say(f"{source} is on this node's disk already: linked as {target}, and not copied")
            return
        if target.is_symlink():
            target.unlink()  # Of an earlier attempt: what is written below it would land in the source.
        for path in _inside(source) if source.is_dir() else (source,):
            below = target / path.relative_to(source) if source.is_dir() else target
            seen = path.stat()
            record = self._into / _RECORDS / xxhash.xxh3_128_hexdigest(os.fsencode(below))
            yield _File(source=path, target=below, record=record, made_from=(seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))

    def _check_room(self, files: Sequence[_File]) -> None:
        begun = sum(map(_begun_bytes, files))
        needed, free = sum(file.made_from[0] for file in files) - begun, shutil.disk_usage(self._into).free
        if files and needed + _SPARE_BYTES > free:
            raise NotStaged(f"{needed / 1e9:.1f} GB are to be staged in {self._into}, and {free / 1e9:.1f} GB are free: make room, or stage less")

    def _copy(self, file: _File) -> None:
        part = _part(file.target)
        part.parent.mkdir(parents=True, exist_ok=True)
        known = _taken_up(file)
        sums = list(known.sums)
        with file.source.open("rb") as source, part.open("r+b" if part.exists() else "w+b") as copy, _part(file.record).open("a") as record:
            for number in range(-(-file.made_from[0] // BLOCK_BYTES)):
                if self._leaving:
                    raise OSError("the agent leaves")
                if number < len(known.sums) and _sum(there := _block(copy, number)) == known.sums[number]:
                    self._done_bytes += len(there)
                    continue
                block = _block(source, number)
                copy.seek(number * BLOCK_BYTES)
                copy.write(block)
                copy.flush()
                if number == len(sums):
                    sums.append(_sum(block))
                    record.write(f"{sums[-1]}\n")
                    record.flush()
                elif sums[number] != _sum(block):
                    _part(file.record).unlink()
                    raise OSError(f"{file.source} is not what it was, though its size and times are: it is staged anew")
                self._done_bytes += len(block)
            copy.truncate(file.made_from[0])
            os.fsync(copy.fileno())
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # So that what is compared comes from the disk.
            if _made_from(os.fstat(source.fileno())) != file.made_from:
                raise OSError(f"{file.source} changed while it was staged")
            if any(_sum(_block(copy, number)) != its_sum for number, its_sum in enumerate(sums)):
                _part(file.record).unlink()
                raise OSError(f"{part} does not read back as it was written: see to the disk of this node")
        part.rename(file.target)
        replace(known, sums=tuple(sums), copy=_seen(file.target)).write(file.record)  # Last: a copy without its record is compared again.
        _part(file.record).unlink()


def _inside(directory: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files below. Links are followed, as they are by whoever reads the source; one that leads nowhere holds nothing."""
    real = directory.resolve()
    if real in above:
        raise NotStaged(f"--stage {directory}: it leads back to {real}, which it lies in, so it has no end; take the link away, or stage what is beside it")
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir():
            yield from _inside(Path(entry.path), (*above, real))
        elif entry.is_file():
            yield Path(entry.path)


def _is_there(file: _File) -> bool:
    """Whole, made from the source as it is now, and as it was when it was compared with it."""
    known = _read_record(file.record)
    return known is not None and known.made_from == file.made_from and known.describes(file.target)


def _begun_bytes(file: _File) -> int:
    """What is on the disk already and is gone on with."""
    known = _read_record(file.record)
    left = [_part(file.target), *([file.target] if known is not None and known.made_from == file.made_from else [])]
    return next((min(file.made_from[0], path.stat().st_size) for path in left if path.exists()), 0)


def _taken_up(file: _File) -> _Record:
    """What an earlier try has left, if it was of the same source: as one that was broken off, all blocks of which are still to be compared."""
    whole, begun = _read_record(file.record), _read_record(_part(file.record))
    fresh = _Record(target=str(file.target), made_from=file.made_from)
    known = next((one for one in (whole, begun) if one is not None and one.made_from == file.made_from), fresh)
    known = replace(known, copy=None)
    known.write(_part(file.record))
    if known.sums and not _part(file.target).exists() and file.target.exists():
        file.target.rename(_part(file.target))
    file.record.unlink(missing_ok=True)
    return known


def _read_record(path: Path) -> _Record | None:
    """None where there is none, or nothing that could be ours. A last line that was broken off is left out."""
    try:
        text = path.read_text()
        heading, *lines = text[: text.rindex("\n")].split("\n")
        said = json.loads(heading)
        copy = tuple(json.loads(lines.pop())) if lines and lines[-1].startswith("[") else None
        return _Record(target=said["target"], made_from=tuple(said["made_from"]), sums=tuple(lines), copy=copy)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _seen(path: Path) -> tuple[int, int, int, int]:
    try:
        seen = path.lstat()
    except OSError:
        return (0, 0, 0, 0)
    return (seen.st_ino, *_made_from(seen))


def _made_from(seen: os.stat_result) -> tuple[int, int, int]:
    return (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def _block(file: BinaryIO, number: int) -> bytes:
    file.seek(number * BLOCK_BYTES)
    return file.read(BLOCK_BYTES)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.holdfast-part")  # No name that a source is likely to have beside it.


def _sum(block: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(block)
