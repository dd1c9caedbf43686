"""A plan: what to do about a diagnosis, why, and what else was considered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from holdfast.domain.fitting import Fitting
from holdfast.domain.mesh import Mesh
from holdfast.domain.treatment import Treatment


class Rung(IntEnum):
    """The ladder, cheapest first. The numbers are those of the design; the missing one belongs to the loop itself."""

    REJOIN = 1  # Survivors keep their processes and take the lost ranks in again.
    RESPAWN = 2  # All ranks of the gang again from their warm parents; nodes and agents stay.
    REPLACE = 3  # The same, with a spare in the place of a node.
    SHRINK = 4  # The same, without the node: fewer ranks, until one is there again.
    ROLL_BACK = 5  # The same, from a checkpoint before training went wrong, with something otherwise than before.
    STOP = 6  # Give up, with a report a person can act on.


class Remedy(StrEnum):
    """What is otherwise than before, when training is rolled back."""

    REPLAY = "replay"  # The same steps again; where one node is suspect, its ranks are computed by another.
    SKIP = "skip"  # The data of the steps that went wrong is left out.
    CHANGE = "change"  # Lower rate, clipped gradients, another warm-up: within the limits the user set.
    OLDER = "older"  # An older checkpoint.


FAILED_S = 600.0  # What is left to pay when a remedy fails: between another try, minutes, and a person, for whom 39 minutes are published (OLMo).


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A rung that was weighed: what it is expected to cost, and how likely that is in vain."""

    rung: Rung
    because: str  # What it would do and what the figures rest on; of one that is not possible, why not.
    possible: bool = True
    cost_s: float = 0.0  # Seconds lost until training is where it was: stop, wait, rendezvous, restore, work done again.
    again_s: float = 0.0  # Of these, work done again.
    risk: float = 0.0  # The chance that it does not help,
    failed_s: float = FAILED_S  # and what is left to pay then.
    remedy: str = ""  # Of a roll back.

    @property
    def name(self) -> str:
        """What a person calls it by."""
        return self.remedy or self.rung.name.lower()

    @property
    def expected_s(self) -> float:
        """With what its failure costs."""
        return self.cost_s + self.risk * self.failed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rung: Rung
    because: str
    alternatives: tuple[str, ...] = ()  # What else was considered, and why it was not chosen.
    candidates: tuple[Candidate, ...] = ()  # Every rung that was weighed, in the order of the ladder.
    drop: tuple[str, ...] = ()  # Nodes that leave the gang.
    take: tuple[str, ...] = ()  # Spares that come in for them.
    wait_s: float = 0.0  # Back off before starting again.
    patience_s: float | None = None  # REPLACE without a spare, where the gang may be smaller: so long is waited for a node before it is.
    permanent: bool = False  # STOP only: trying again cannot help, as against a budget that is used up.
    lost: tuple[int, ...] = ()  # Ranks that were, where the mesh is known:
    mesh: Mesh | None = None  # that of the gang they were of,
    held: str = ""  # and who else holds what they held.
    distrust: str = ""  # A checkpoint not to restore from again.
    fitting: Fitting | None = None  # What the ranks may hold in memory from now on; None: as before.
    remedy: str = ""  # ROLL_BACK only, as what follows:
    at_most: int = -1  # the newest step that may be restored,
    treatment: Treatment | None = None  # what training does otherwise from now on; None: as before,
    deal: tuple[str, ...] = ()  # the nodes of the next gang in their order, where ranks are dealt otherwise,
    suspect: str = ""  # and the node whose ranks are computed by another.
    retire: str = ""  # A node that was found to compute wrongly, and is cordoned.
    learned: str = ""  # The version of the learned tables it was made with; empty: with none.

    @property
    def name(self) -> str:
        """What a person calls it by."""
        return self.remedy or self.rung.name.lower()

    @property
    def shrinks(self) -> bool:
        """Whether more nodes leave than come in for them: at once, or when patience is at its end."""
        return len(self.drop) > len(self.take)
