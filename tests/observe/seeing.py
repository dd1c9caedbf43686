"""What the tests of observation share: a machine made of files, and a way to ask what was seen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from holdfast.domain.kernel_event import KernelEvent
from holdfast.domain.signal import Signal
from holdfast.observe.cgroup import find
from holdfast.observe.probe import Seen

T = TypeVar("T")


def values(seen: Iterable[Seen], of: str = "") -> dict[str, float]:
    """Metric to value, of one thing."""
    return {one.metric: one.value for one in seen if isinstance(one, Signal) and one.of == of}


def events(seen: Iterable[Seen], kind: str = "") -> list[KernelEvent]:
    return [one for one in seen if isinstance(one, KernelEvent) and kind in ("", one.kind)]


def eventually(look: Callable[[], T], *, what: str, within_s: float = 20.0) -> T:
    """The first true answer; the test fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come within {within_s:g} s; the last answer was {found!r}"
        time.sleep(0.01)
    return found


def machine(root: Path, **files: str) -> Path:
    """A directory like /proc: names with __ for /."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class Hands:
    """A clock that is moved by hand."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def may_make_groups(controller: str) -> bool:
    """Whether control groups of version 1 can be made here."""
    return os.access(Path("/sys/fs/cgroup") / controller, os.W_OK) and (Path("/sys/fs/cgroup") / controller / "tasks").exists()


def version_of_groups() -> int:
    """Of the control groups in which memory, cores and processes can be limited here; 0 where they cannot."""
    if all(map(may_make_groups, ("memory", "cpu", "pids"))):
        return 1
    home = find("self").get("memory")
    if home is None or home.version != 2 or not os.access(home.directory / "cgroup.subtree_control", os.W_OK):
        return 0
    return 2 if {"memory", "cpu", "pids"} <= set((home.directory / "cgroup.controllers").read_text().split()) else 0
