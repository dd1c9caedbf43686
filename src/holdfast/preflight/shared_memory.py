"""Shared memory: /dev/shm holds snapshots, beats and what data loaders pass on. How much there is, and whether that much can really be written."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from holdfast.checkpoint.memory import available_bytes
from holdfast.preflight.check import Check, Place, amount, bad, looking, ok, warn
from holdfast.preflight.needs import Needs, needs_of

_LEAST_BYTES, _TOUCHED_BYTES = 256 << 20, 16 << 20  # Containers come with 64 MiB, in which the first loader with workers dies of a bus error.
_SHARE = 0.57  # Of free memory: each of two snapshots is made only where it takes no more than 0.4 of what is free by then (trainer/snapshots.py).
_DO = "give it more: `mount -o remount,size=8G /dev/shm`; for a container `--shm-size 8g`, or an emptyDir of medium Memory"


def look(place: Place, directory: Path = Path("/dev/shm")) -> list[Check]:
    needs = needs_of(place)
    looking(str(directory))
    try:
        space = os.statvfs(directory)
    except OSError as error:
        return [bad("shared_memory", f"{directory}: {error.strerror}", "mount a tmpfs there", culprit=str(directory))]
    free = space.f_bavail * space.f_frsize
    if needs is not None and (short := judge(free, available_bytes(), _held(directory, place.holds), needs, str(directory))):
        return [short]
    if free < _LEAST_BYTES:
        said = f"{amount(free)} free in {directory}, and {amount(_LEAST_BYTES)} are wanted"
        return [bad("shared_memory", said, _DO, culprit=str(directory), free_bytes=free)]
    if problem := touch(directory):
        said = f"{directory} says it has {amount(free)} free and cannot take 16 MiB: {problem}"
        return [bad("shared_memory", said, _DO, culprit=str(directory), free_bytes=free)]
    ranks = f", {amount(free / place.ranks)} for each of {place.ranks} ranks" if place.ranks > 1 else ""
    of_job = f"; {amount(needs.shared_memory_bytes)} are wanted for snapshots like {needs.checkpoint}" if needs is not None else ""
    said = f"{amount(free)} free in {directory}{ranks}{of_job}"
    figures = {"free_bytes": float(free)} | ({"wanted_bytes": float(needs.shared_memory_bytes)} if needs is not None else {})
    if needs is None and free < place.ranks << 30:
        return [warn("shared_memory", said, f"large models will not fit in snapshots: {_DO}", culprit=str(directory), **figures)]
    return [ok("shared_memory", said, **figures)]


def judge(free: int, available: int, held: int, needs: Needs, directory: str) -> Check | None:
    """What the job has there already it need not find; and what is free there must also be free in the machine."""
    wanted, may_take = needs.shared_memory_bytes, round(_SHARE * available)
    if min(free, may_take) + held >= wanted:
        return None
    of_memory = f"{amount(available)} of memory free, of which snapshots may take {amount(may_take)}"
    so_much = f"{amount(free)} free in {directory}" if free <= may_take else of_memory
    said = f"{so_much}, and {amount(wanted - held)} are wanted: snapshots like {needs.checkpoint}, two of each rank, and one more for another node"
    do = _DO if free <= may_take else "end what fills the memory (`ps aux --sort -rss | head`), or save less in a checkpoint"
    return warn("shared_memory", said, f"without room a save goes to the disk, and training waits for it; {do}", culprit=directory, wanted_bytes=wanted)


def _held(directory: Path, prefix: str) -> int:
    if not prefix:
        return 0
    return sum(file.stat().st_blocks * 512 for path in directory.glob(f"{prefix}*") for file in path.rglob("*") if file.is_file())


def touch(directory: Path) -> str:
    """Write a little; what went wrong, if anything. A size is a promise, and a control group may not let it be kept."""
    path = directory / f"holdfast-doctor-{secrets.token_hex(4)}"
    try:
        with path.open("wb") as file:
            file.write(bytes(_TOUCHED_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return ""
