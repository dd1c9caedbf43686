"""Limits: what this user may have open, running and locked in memory, held against what ranks and data loaders need."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

from holdfast.preflight.check import Check, Place, bad, ok, warn

_FILES_MIN, _FILES_EACH = 256, 1024  # A rank with eight loader workers and its sockets is near a thousand.
_PROCESSES_EACH = 64
_LOCKED_MIN = 64 << 20  # For InfiniBand and pinned memory.


def look(place: Place) -> list[Check]:
    held = {name: _soft(getattr(resource, f"RLIMIT_{name}")) for name in ("NOFILE", "NPROC", "MEMLOCK")}
    return judge(held, place.ranks, infiniband=Path("/sys/class/infiniband").exists())


def _soft(which: int) -> float:
    soft, _ = resource.getrlimit(which)
    return float("inf") if soft == resource.RLIM_INFINITY else float(soft)


def judge(held: Mapping[str, float], ranks: int, *, infiniband: bool) -> list[Check]:
    files, processes, locked = held["NOFILE"], held["NPROC"], held["MEMLOCK"]
    told = f"{files:g} open files, {processes:g} processes, {locked / 2**20:g} MiB locked"
    if files < _FILES_MIN:
        return [bad("limits", told, "raise it: `ulimit -n 65536`", culprit="open files")]
    if files < ranks * _FILES_EACH:
        return [warn("limits", f"{told}, for {ranks} ranks", "raise it: `ulimit -n 65536`, or in limits.conf", culprit="open files")]
    if processes < ranks * _PROCESSES_EACH:
        return [bad("limits", f"{told}, for {ranks} ranks", "raise it: `ulimit -u 65536`; threads count too", culprit="processes")]
    if infiniband and locked < _LOCKED_MIN:
        return [bad("limits", f"{told}, and there is InfiniBand, which locks its buffers", "raise it: `ulimit -l unlimited`", culprit="locked memory")]
    return [ok("limits", told)]
