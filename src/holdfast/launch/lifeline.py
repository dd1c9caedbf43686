"""A process among others: it gets a signal when its parent dies, so as not to outlive it, and a name of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGTERM) -> None:
    """Get `signum` when `parent` dies; at once if it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def show_as(name: str) -> None:
    """What `top` and `ps -A` call this process; 15 bytes are kept."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none escapes the tree."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(but: Collection[int] = ()) -> None:
    """Reap dead descendants that came to us; children of our own that somebody waits for are left alone."""
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and dead.si_pid not in but:
            os.waitpid(dead.si_pid, 0)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
