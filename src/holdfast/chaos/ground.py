"""The ground: one job on this machine, in which faults are done. Who is where, where the script listens, and what must be put right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.chaos.undo import Undoing
from holdfast.errors import Retryable
from holdfast.launch.layout import JobDirectory
from holdfast.launch.processes import process_of


class Missed(Retryable):
    """What a fault was meant for is not there at this moment: try again a moment later."""


class Scene(Protocol):
    """A job as it is seen now."""

    @property
    def directory(self) -> JobDirectory: ...

    def pid(self, rank: int) -> int:
        """Of its process now; raises Missed where there is none."""

    def node(self, rank: int) -> str: ...

    def step(self) -> int:
        """The newest that any rank is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    scene: Scene
    orders: Path  # Where the script looks for the faults that only it can have.
    undoing: Undoing
    group: str = ""  # The name of our own control groups.
    clock: Path | None = None  # The file behind the job's clock, where it was started with one that can be set.

    def pid(self, rank: int) -> int:
        return self.scene.pid(rank)

    def node(self, rank: int) -> str:
        return self.scene.node(rank)

    def process(self, name: str) -> int:
        """Of control or of a node's agent."""
        found = process_of(self.scene.directory, name)
        if found is None:
            raise Missed(f"{name} is not up")
        return found

    def agent(self, rank: int) -> int:
        return self.process(self.node(rank))
