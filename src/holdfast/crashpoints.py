"""Crash points: named places where a test may kill the process, between any two steps that must survive it.

`HOLDFAST_CRASH_AT` names the points, `HOLDFAST_CRASH_ONCE` a directory that remembers which have been used, so that the process that comes after goes
on. Without the variables a point costs one look at an empty set.
"""

from __future__ import annotations

import os
import signal

_POINTS = frozenset(filter(None, os.environ.get("HOLDFAST_CRASH_AT", "").split(",")))


def crash_point(name: str) -> None:
    if name in _POINTS and _first_time(name):
        os.kill(os.getpid(), signal.SIGKILL)


def _first_time(name: str) -> bool:
    try:
        os.close(os.open(os.path.join(os.environ["HOLDFAST_CRASH_ONCE"], name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
