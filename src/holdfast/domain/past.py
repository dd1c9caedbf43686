"""What is kept of jobs after they are over: incidents with outcomes, time in service, what people corrected. All that is learned is made from these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRemedy:
    """One rung that was stood on in an incident, and whether training went on from it."""

    rung: str  # "rejoin", "respawn", "replace", "shrink"; of a roll back its remedy: "replay", "skip", "change", "older".
    worked: bool  # And what it was for was not seen again at once.
    cost_s: float  # From the moment it was chosen until training went on, or until the next fault.


@dataclass(frozen=True, slots=True, kw_only=True)
class PastIncident:
    """One incident as it is remembered across jobs: what broke, where, what was done, and what came of it."""

    job: str
    number: int
    opened_at: float
    closed_at: float | None = None
    cause: str = ""  # As it was diagnosed; of one that only stood beside a running gang, what was found.
    because: str = ""
    fingerprint: str = ""
    node: str = ""
    ranks: tuple[int, ...] = ()
    permanent: bool = False
    confidence: float = 0.0
    outcome: str = "open"  # Or "resolved", "gave_up", "false_alarm".
    stands: bool = False  # Nothing was stopped for it.
    remedies: tuple[PastRemedy, ...] = ()
    cost_s: float = 0.0
    steps_again: int = 0
    evidence: tuple[str, ...] = ()
    learned: str = ""  # The version of the learned tables that its plans were made with.
    chaos: bool = False  # Its job was there to be struck: what was done on purpose teaches nothing.

    @property
    def id(self) -> str:
        """As people name it: `JOB/NUMBER`."""
        return f"{self.job}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastService:
    """How long a node was there for a job on one day (of UTC, counted from 1970). What fails is held against it."""

    node: str
    run: str
    day: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run of a job, with what can be carried over to the next one of its kind."""

    job: str
    run: str
    command: str  # What was run, without its arguments.
    shape: tuple[tuple[str, str], ...] = ()  # What the user said decides how much it needs: ("batch", "32").
    started_at: float
    ended_at: float | None = None
    outcome: str = ""
    goodput: float | None = None  # None: not known.
    peak_bytes: int = 0  # Of the worker that had most.
    phases: tuple[tuple[str, tuple[float, ...]], ...] = ()  # How long each phase took, the longest times.


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A person said what a failure really was. It holds for every failure with the same fingerprint until it is revoked or corrected again."""

    number: int = 0  # Given by whoever keeps it.
    fingerprint: str
    cause: str
    was: str = ""
    incident: str = ""  # On which it was said.
    text: tuple[str, ...] = ()  # What the failure looked like: the material to learn from.
    who: str = ""
    at: float = 0.0
    because: str = ""
    revoked_at: float | None = None
