"""A way to make a training fail (or look as if it did), and what is true of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from incidents.running import Running


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """`command` names a script of `jobs/` and its arguments; `{dir}`, `{port}` and `{url}` are a directory, a free port and a server.

    Launches: `fork` runs the script in a process forked from one that has imported torch, one per rank; `bash` runs it from a batch script, as schedulers do,
    so that the shell says what became of it; `restarts` tries three times; `torchrun`, `spawn` and `holdfast` are those launchers; `plain` is none.
    """

    name: str  # Of the way: variants of it share it, and stand on the same side of any split.
    variant: str
    cause: str
    permanence: str
    scope: str
    command: tuple[str, ...]
    launch: str = "fork"
    ranks: int = 1
    rank: int | None = None  # Whose fault it is, where one of several.
    within_s: float = 20.0
    env: tuple[tuple[str, str], ...] = ()
    prepare: Callable[[Path], None] | None = None  # In the scratch directory, before anything runs.
    inside: Callable[[Path, int], None] | None = None  # In each rank's own process, before its script: limits, mounts, another user.
    during: Callable[[Running], None] | None = None  # While it runs: signals.
    root: bool = False
    one_log: bool = True  # All ranks into one file, as most launchers do; or one file each.
    kernel_log: bool = False  # Keep what the kernel said meanwhile.
    before: str = ""  # What stands before the interpreter in a batch script: a time limit.
    preload: str = ""  # The error a preloaded library returns in place of the kernel: the one thing here that is not the world's own doing.
    quick: bool = False  # Part of a first look.

    @property
    def full_name(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name
