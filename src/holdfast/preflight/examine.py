"""Examine a place: every check in a process of its own, one after the other, so that none spoils the figures of another.

A check that does not answer in time, or dies, is bad: a disk that hangs is found by the check that hangs on it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from holdfast.preflight.check import Check, Place, Verdict, bad

# Each is a module of this name with `look(place)`. In this order: what explains the others comes first, what takes long last.
CHECKS: Final = ("versions", "limits", "groups", "ports", "clock", "shared_memory", "storage", "memory", "links", "compute", "graphics")
QUICK_WITHIN_S, FULL_WITHIN_S = 15.0, 30.0  # For one check. A GPU's context alone takes seconds on a machine with eight.


def examine(place: Place, only: Sequence[str] = (), *, prefix: Sequence[str] = ()) -> Iterator[Check]:
    """The checks, as they come. `prefix` is a command that goes before: into the namespace of a node."""
    for name in only or CHECKS:
        yield from _apart(name, place, prefix)


def worst(checks: Sequence[Check]) -> Verdict:
    verdicts = {check.verdict for check in checks}
    return next((verdict for verdict in (Verdict.BAD, Verdict.WARN) if verdict in verdicts), Verdict.OK)


def _apart(name: str, place: Place, prefix: Sequence[str]) -> list[Check]:
    began = time.monotonic()
    within_s = FULL_WITHIN_S if place.full else QUICK_WITHIN_S
    command = [*prefix, sys.executable, "-m", "holdfast.preflight", name, msgspec.json.encode(place).decode()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # Each core is examined by itself.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    try:
        said, complaint = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # In the kernel's hands it may not even die.
            process.communicate(timeout=1.0)
        found = [bad(name, f"no answer within {within_s:.0f} s", "look at what it touches: what hangs here will hang a training too", culprit=place.node)]
    else:
        found = _answer(name, process.returncode, said, complaint)
    seconds = time.monotonic() - began
    return [replace(check, node=place.node, seconds=seconds / len(found)) for check in found]


def _answer(name: str, code: int, said: bytes, complaint: bytes) -> list[Check]:
    with contextlib.suppress(msgspec.DecodeError):
        if found := msgspec.json.decode(said, type=list[Check]):
            return found
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    last = complaint.decode(errors="replace").strip().splitlines()
    return [bad(name, f"the check {how}: {last[-1] if last else 'it said nothing'}", "a training would meet the same; look at what the check touches")]
