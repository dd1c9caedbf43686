"""Worth: whether another node is a better first try than the same one again, by how both did before.

The remedy with the least expected cost comes first: c + (1 - p) × f, where c is what a try costs on average, whether it works or not, p the chance that it
works, and f what it costs when it does not: the next try, or a person. p is the mean of a Beta distribution: what was believed before weighs `PRIOR` tries, and
a cause's record is what is believed of each of its fingerprints. No dice: the same tables decide the same.

Sees        the tables a job was started with (`domain/learned.py`), the diagnosis, who is to blame, the spares.
Says        why another node is worth more, or nothing. Nothing without a record of the same node failing again: then the ladder stays as it is.
Is wrong    when what is blamed is not what broke. A node is left for one fault at a time, and only for a spare that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.diagnosis import Diagnosis
from holdfast.domain.learned import Learned, Remedy
from holdfast.domain.plan import FAILED_S, Rung
from holdfast.domain.state import Attempt

PRIOR: Final = 2.0  # Tries that what is believed beforehand weighs,
# and that: the chance, and the seconds of a try.
BELIEVED: Final = {"rejoin": (0.7, 2.0), "respawn": (0.8, 60.0), "replace": (0.7, 120.0)}
LEAST: Final = 1.5  # Tries of a respawn, decayed, before its record changes anything.


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    rung: str
    tries: float
    worked: float
    chance: float
    cost_s: float

    @property
    def expected_s(self) -> float:
        """With what its failure costs."""
        return self.cost_s + (1.0 - self.chance) * FAILED_S

    def __str__(self) -> str:
        return f"{self.rung} helped {self.worked:.1f} of {self.tries:.1f} times" if self.tries else f"{self.rung} was not tried yet"


def other_node(diagnosis: Diagnosis, learned: Learned | None, *, again: bool) -> str:
    """Why to leave the node that is to blame, or nothing."""
    if learned is None:
        return ""
    respawn, replace = (worth(rung, diagnosis, learned, again=again) for rung in ("respawn", "replace"))
    if respawn.tries < LEAST or replace.expected_s >= respawn.expected_s:
        return ""
    return (
        f"against {diagnosis.cause} {respawn} and {replace}: "
        f"another node is expected to cost {replace.expected_s:.0f} s and the same one {respawn.expected_s:.0f} s, their failure counted in"
    )


def chance(rung: Rung, diagnosis: Diagnosis, history: Sequence[Attempt], learned: Learned | None, *, again: bool) -> Worth:
    """What is believed of a rung: beforehand, by the tables, and by what this job has tried itself against the cause."""
    known = worth(rung.name.lower(), diagnosis, learned or Learned(), again=again)
    own = [one for one in history if one.rung == rung and one.cause == diagnosis.cause and (one.progressed or one.came_back)]
    worked = sum(not one.came_back for one in own)
    better = ((PRIOR + known.tries) * known.chance + worked) / (PRIOR + known.tries + len(own))
    return Worth(rung=known.rung, tries=known.tries + len(own), worked=known.worked + worked, chance=better, cost_s=known.cost_s)


def worth(rung: str, diagnosis: Diagnosis, learned: Learned, *, again: bool) -> Worth:
    chance, cost_s = BELIEVED[rung]
    tries = worked = 0.0
    for fingerprint in ("", diagnosis.fingerprint):
        rows = [
            row for row in learned.remedies
            if (row.cause, row.fingerprint, row.rung) == (str(diagnosis.cause), fingerprint, rung) and (row.again == again or rung == "replace")
        ]  # fmt: skip
        if not rows or (not diagnosis.fingerprint and fingerprint):
            continue
        tries, worked = sum(row.worked + row.failed for row in rows), sum(row.worked for row in rows)
        chance = (PRIOR * chance + worked) / (PRIOR + tries)
        cost_s = (PRIOR * cost_s + sum(map(_spent_s, rows))) / (PRIOR + tries)
    return Worth(rung=rung, tries=tries, worked=worked, chance=chance, cost_s=cost_s)


def remembered(remedy: str, cause: str, believed: float, learned: Learned | None) -> float:
    """The chance of a remedy for training gone wrong: what is believed of it, and how it did in earlier jobs."""
    rows = [row for row in (learned or Learned()).remedies if (row.cause, row.fingerprint, row.rung) == (cause, "", remedy)]
    tries, worked = sum(row.worked + row.failed for row in rows), sum(row.worked for row in rows)
    return (PRIOR * believed + worked) / (PRIOR + tries)


def _spent_s(row: Remedy) -> float:
    return row.worked * row.worked_s + row.failed * row.failed_s
