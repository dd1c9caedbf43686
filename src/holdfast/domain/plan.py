"""A plan: what to do about a diagnosis, why, and what else was considered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Rung(IntEnum):
    """The ladder, cheapest first. The numbers are those of the design; the missing ones belong to later rooms."""

    RESPAWN = 2  # All ranks of the gang again from their warm parents; nodes and agents stay.
    REPLACE = 3  # The same, with a spare in the place of a node.
    STOP = 6  # Give up, with a report a person can act on.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    rung: Rung
    because: str
    alternatives: tuple[str, ...] = ()  # What else was considered, and why it was not chosen.
    drop: tuple[str, ...] = ()  # Nodes that leave the gang.
    take: tuple[str, ...] = ()  # Spares that come in for them.
    wait_s: float = 0.0  # Back off before starting again.
    permanent: bool = False  # STOP only: trying again cannot help, as against a budget that is used up.
    distrust: str = ""  # A checkpoint not to restore from again.
    learned: str = ""  # The version of the learned tables it was made with; empty: with none.
