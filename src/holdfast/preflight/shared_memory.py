"""Shared memory: /dev/shm holds snapshots, beats and what data loaders pass on. How much there is, and whether that much can really be written."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from holdfast.preflight.check import Check, Place, bad, ok, warn

_LEAST_BYTES, _TOUCHED_BYTES = 256 << 20, 16 << 20  # Containers come with 64 MiB, in which the first loader with workers dies of a bus error.
_DO = "give it more: `mount -o remount,size=8G /dev/shm`; for a container `--shm-size 8g`, or an emptyDir of medium Memory"


def look(place: Place, directory: Path = Path("/dev/shm")) -> list[Check]:
    try:
        space = os.statvfs(directory)
    except OSError as error:
        return [bad("shared_memory", f"{directory}: {error.strerror}", "mount a tmpfs there", culprit=str(directory))]
    free = space.f_bavail * space.f_frsize
    wanted = max(_LEAST_BYTES, place.shared_memory_bytes)
    if free < wanted:
        return [bad("shared_memory", f"{free >> 20} MiB free in {directory}, and {wanted >> 20} MiB are wanted", _DO, culprit=str(directory), free_bytes=free)]
    if problem := touch(directory):
        said = f"{directory} says it has {free >> 20} MiB free and cannot take 16: {problem}"
        return [bad("shared_memory", said, _DO, culprit=str(directory), free_bytes=free)]
    ranks = f", {free / place.ranks / 2**30:.1f} GiB for each of {place.ranks} ranks" if place.ranks > 1 else ""
    said = f"{free / 2**30:.1f} GiB free in {directory}{ranks}"
    if free < place.ranks << 30:
        return [warn("shared_memory", said, f"large models will not fit in snapshots: {_DO}", culprit=str(directory), free_bytes=free)]
    return [ok("shared_memory", said, free_bytes=free)]


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
