"""What was learned from earlier jobs, as data a job is started with. It is part of the job's specification, and so of its journal: the same events decide the
same again, whatever is learned meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """How a rung did against a cause. Counts are decayed, and are counts of what was really tried."""

    cause: str
    fingerprint: str = ""  # Empty: all failures of the cause.
    rung: str
    again: bool = False  # Tried when a rung had just failed in the same incident.
    worked: float = 0.0
    failed: float = 0.0
    worked_s: float = 0.0  # What it cost when it worked, in the mean,
    failed_s: float = 0.0  # and when it did not.


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    version: str = ""  # Of these tables: recorded with every plan that was made with them.
    incidents: int = 0  # What they are made from,
    since: float = 0.0  # and since when.
    remedies: tuple[Remedy, ...] = ()
    corrections: tuple[tuple[str, str], ...] = ()  # Fingerprint, and the class a person gave it.
    suspects: tuple[str, ...] = ()  # Nodes that fail far more often than others: taken last.
    phases: tuple[tuple[str, tuple[float, ...]], ...] = ()  # How long each phase of a job like this one took.
