"""Storage: in the directories a job writes to, a file is written, synced, read back from the disk and compared; how fast, and how much room is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from holdfast.preflight.check import Check, Place, amount, bad, looking, ok, warn
from holdfast.preflight.needs import Needs, needs_of

_QUICK_BYTES, _FULL_BYTES, _BLOCK_BYTES = 32 << 20, 512 << 20, 1 << 20
_FREE_MIN, _FREE_LOW = 256 << 20, 5 << 30
_SYNCS = 20
_SLOW_BYTES_PER_S, _SLOW_SYNC_S = 30e6, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    write_bytes_per_s: float
    read_bytes_per_s: float
    sync_s: float  # The slowest of some.
    same: bool


def look(place: Place) -> Iterator[Check]:
    seen = set[int]()
    for directory in (place.checkpoints, place.state):
        looking(directory)
        path = next((one for one in (Path(directory), *Path(directory).parents) if one.exists()), Path("/"))
        if (device := path.stat().st_dev) in seen:
            continue  # Two directories of one disk are one.
        seen.add(device)
        needs = needs_of(place) if directory == place.checkpoints else None
        looking(directory)
        yield _look_at(path, _FULL_BYTES if place.full else _QUICK_BYTES, needs)


def _look_at(path: Path, size: int, needs: Needs | None = None) -> Check:
    space = os.statvfs(path)
    free = space.f_bavail * space.f_frsize
    if free < max(_FREE_MIN, 2 * size):
        return bad("storage", f"{path} has {free >> 20} MiB left", "make room, or choose another place with --state", culprit=str(path), free_bytes=free)
    if needs is not None and free < needs.disk_bytes:
        said = f"{path} has {amount(free)} left, and {amount(needs.disk_bytes)} are wanted: {needs.checkpoint} wrote {amount(needs.save_bytes)}"
        do = "make room: the next checkpoint is written before the oldest is removed"
        return bad("storage", said, do, culprit=str(path), free_bytes=free, wanted_bytes=needs.disk_bytes)
    if space.f_files and space.f_favail < 1000:
        return bad("storage", f"{path} has room for {space.f_favail} more files", "remove old files: the disk is out of inodes", culprit=str(path))
    try:
        measured = measure(path, size)
    except OSError as error:
        do = "see who owns it, whether it is mounted for writing, and the kernel log"
        return bad("storage", f"{path} cannot be written: {error.strerror}", do, culprit=str(path))
    return judge(path, free, measured, needs)


def measure(path: Path, size: int) -> Measured:
    block, name = secrets.token_bytes(_BLOCK_BYTES), path / f".holdfast-doctor-{secrets.token_hex(4)}"
    wanted = xxhash.xxh3_64()
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(size // _BLOCK_BYTES):
            os.write(fd, block)
            wanted.update(block)
        os.fsync(fd)
        wrote_s = time.perf_counter() - began
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # From the disk, and not from memory; some file systems do not listen.
        os.lseek(fd, 0, os.SEEK_SET)
        got, began = xxhash.xxh3_64(), time.perf_counter()
        while data := os.read(fd, _BLOCK_BYTES):
            got.update(data)
        read_s = time.perf_counter() - began
        syncs = []
        for number in range(_SYNCS):
            began = time.perf_counter()
            os.pwrite(fd, block[:4096], 4096 * number)
            os.fsync(fd)
            syncs.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            name.unlink()
    same = got.digest() == wanted.digest()
    return Measured(write_bytes_per_s=size / wrote_s, read_bytes_per_s=size / read_s, sync_s=max(syncs), same=same)


def judge(path: Path, free_bytes: int, seen: Measured, needs: Needs | None = None) -> Check:
    wanted = {"wanted_bytes": float(needs.disk_bytes)} if needs is not None else {}
    figures = wanted | {"free_bytes": free_bytes, "write_bytes_per_s": seen.write_bytes_per_s, "read_bytes_per_s": seen.read_bytes_per_s, "sync_s": seen.sync_s}
    speeds = f"writes {seen.write_bytes_per_s / 1e6:.0f} MB/s, reads {seen.read_bytes_per_s / 1e6:.0f} MB/s, slowest sync {1e3 * seen.sync_s:.1f} ms"
    of_job = f" ({amount(needs.disk_bytes)} wanted)" if needs is not None else ""
    told = f"{path}: {amount(free_bytes)} free{of_job}, {speeds}"
    if not seen.same:
        do = "do not save there: the disk, or what is in between, corrupts data"
        return bad("storage", f"{path} gave back other bytes than were written", do, culprit=str(path), **figures)
    if seen.write_bytes_per_s < _SLOW_BYTES_PER_S or seen.sync_s > _SLOW_SYNC_S:
        do = "saves will be slow: choose another place with --state, or see who else writes there (`iostat -x 1`)"
        return warn("storage", told, do, culprit=str(path), **figures)
    if needs is None and free_bytes < _FREE_LOW:
        return warn("storage", told, "make room: a checkpoint holds the weights and about twice as much for the optimizer", culprit=str(path), **figures)
    return ok("storage", told, **figures)
