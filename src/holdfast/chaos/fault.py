"""A fault: how it is done, what it should be called, and what it needs to be possible at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from holdfast.chaos.ground import Ground

Deed = Callable[[Ground, int], None]  # At a rank.


class Aim(StrEnum):
    """Who is hit, and must be there again."""

    RANK = "rank"
    NODE = "node"
    AGENT = "agent"
    CONTROL = "control"
    ALL = "all"  # Every rank.


class Need(StrEnum):
    ROOT = "root"
    GROUPS = "groups"  # A control group of our own for the cores.
    NETWORK = "network"  # Nodes with a network of their own.
    THROTTLE = "throttle"  # A control group that holds up writes to a disk.
    DISK = "disk"  # Checkpoints on a disk of their own.
    CLOCK = "clock"
    LIMIT = "limit"  # A limit on memory: without one the whole machine would suffer.
    SPARE = "spare"  # A node that can take the place of a lost one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    key: str  # As it is asked for: `--faults worker_killed`.
    name: str
    says: str  # What was done, with {rank} and {node}.
    kinds: tuple[str, ...]  # The finding the story is named after, or the cause that was diagnosed: any of these is right. None: nobody need notice.
    strike: Deed
    aim: Aim = Aim.RANK
    culprit: str = "rank"  # Who should be named: "rank", "node" or "": nobody in particular.
    within_s: float = 60.0  # Noticed by then, or not at all.
    needs: tuple[Need, ...] = ()
    program: str = ""  # Without which it cannot be done.
    order: str = ""  # What the script must carry.
    ruins: bool = False  # The gang is broken afterwards: what it trained is worth nothing, or what it counted (skipped saves) would stand for minutes.
    learned: bool = False  # Whoever is to see it must know what is usual.
    stands: bool = False  # Training goes on beside it, until it is put right.
    ridden_through: bool = False  # Training should not notice, so there need not be an incident.
    lasts_s: float = 20.0  # So long it goes on after it was noticed, where that is measured.

    @property
    def mend_when_noticed(self) -> bool:
        """Until it is put right nothing can get better; what else was done is answered by Holdfast, and put right at the end only if it was not."""
        return self.stands or Need.NETWORK in self.needs
