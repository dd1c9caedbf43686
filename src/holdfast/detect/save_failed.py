"""Failed save: a checkpoint that could not be written, or that will not fit.

Sees        each save of this node that failed and what the system said; each second, what is free where checkpoints lie, and the size of the newest one.
Says        `save_failed` with the system's words, the space left and the space needed, until a newer checkpoint is complete; `save_will_fail` while less is
            free than the next save needs, before anything is lost. Both are critical.
Is wrong    about the size of a save that differs much from the one before it; about quotas of a user, which the file system does not tell: there the save
            fails first. Nodes with a disk of their own each for one checkpoint are not meant.
Costs       a few comparisons a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from holdfast.domain.finding import Finding, Severity

NONE: Final = (-1, -1)
_LOOKS: Final = 2  # A save that is being written or swept is not yet what it will be; so is not judged by one look.


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is left where checkpoints lie, and what the next save takes of it."""

    free_bytes: float
    size_bytes: float
    begun_bytes: float = 0.0  # Of a save that is under way, or that will be swept before the next: they are as good as free.
    needs_bytes: float = 0.0  # 0: nothing was saved yet that would tell.
    free_files: float = float("inf")  # Some file systems make them as needed.
    needs_files: float = 0.0

    @property
    def left_bytes(self) -> float:
        return self.free_bytes + self.begun_bytes

    @property
    def is_enough(self) -> bool:
        return self.needs_bytes <= self.left_bytes and self.needs_files <= self.free_files

    def __str__(self) -> str:
        if self.needs_bytes <= self.left_bytes and self.needs_files > self.free_files:
            return f"{self.free_files:.0f} more files can be made, and a save needs {self.needs_files:.0f}"
        needs = f", and a save needs {size(self.needs_bytes)}" if self.needs_bytes else ""
        return f"{size(self.left_bytes)} of {size(self.size_bytes)} are free{needs}"

    @property
    def by_now(self) -> str:
        """Tries again after a save failed for lack of room, which others may have given back since."""
        return str(self).replace("are free", "are free again") if self.needs_bytes and self.is_enough else str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A save that failed."""

    generation: int
    step: int
    said: str  # By the system: "No space left on device".
    full: bool = False  # For lack of room.


@dataclass(slots=True)
class SaveFailed:
    node: str
    directory: str  # Where checkpoints lie.
    ended: dict[str, str] = field(default_factory=dict)  # How what was found came to its end, by key.
    _failures: tuple[Failure, Failure] | None = None  # The first and the last since a save succeeded.
    _short_looks: int = 0
    _standing: dict[str, Finding] = field(default_factory=dict)

    @property
    def standing(self) -> list[Finding]:
        """What is so now."""
        return list(self._standing.values())

    @property
    def is_failing(self) -> bool:
        return self._failures is not None

    def failed(self, failure: Failure, room: Room | None, newest: tuple[int, int], now: float) -> None:
        """Take a save that failed; `newest` is the generation and step of the newest complete checkpoint."""
        if (failure.generation, failure.step) <= newest:
            return  # It was complete all the same, or a newer one is.
        first, last = self._failures or (failure, failure)
        self._failures = first, max(last, failure, key=lambda one: (one.generation, one.step))
        if self._find("save_failed") is None:
            figures = f": {room.by_now}" if failure.full and room is not None else ""
            self._say("save_failed", f"{failure.said}{figures}; step {failure.step} could not be saved in {self.directory}; {newest_words(newest)}", now)

    def look(self, room: Room | None, newest: tuple[int, int], now: float) -> None:
        """Take one look at the disk. `room` is None where it cannot be asked."""
        if self._failures is not None and newest >= (self._failures[1].generation, self._failures[1].step):
            first, last = self._failures
            nothing = f", and nothing since {first.step} is lost"
            lost = f"; what came after it up to step {last.step} was lost, and is done again" if newest[1] < last.step else nothing
            self._end("save_failed", f"saving works again: step {newest[1]} is saved{lost}")
            self._failures = None
        self._short_looks = self._short_looks + 1 if room is not None and not room.is_enough else 0
        if self.is_failing:
            self._short_looks = 0  # It is so already.
        if room is not None and self._short_looks >= _LOOKS and self._find("save_will_fail") is None:
            self._say("save_will_fail", f"the next save will not fit into {self.directory}: {room}; {newest_words(newest)}", now)
        elif room is not None and room.is_enough:
            self._end("save_will_fail", f"there is room for the next save: {room}")

    def _find(self, kind: str) -> Finding | None:
        return self._standing.get(kind)

    def _say(self, kind: str, because: str, now: float) -> None:
        finding = Finding(kind=kind, node=self.node, of=self.directory, since=now, severity=Severity.CRITICAL, because=because)
        self._standing[kind] = finding
        self.ended.pop(finding.key, None)

    def _end(self, kind: str, because: str) -> None:
        finding = self._standing.pop(kind, None)
        if finding is not None:
            self.ended[finding.key] = because


def newest_words(newest: tuple[int, int]) -> str:
    return f"the newest checkpoint is step {newest[1]}" if newest != NONE else "there is no checkpoint yet"


def size(number_bytes: float) -> str:
    """With the units in which disks are sold: 14 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number_bytes) < 999.5:
            return f"{number_bytes:.3g} {unit}"
        number_bytes /= 1000
    return f"{number_bytes:.3g} TB"
