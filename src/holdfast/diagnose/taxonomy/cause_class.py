"""What is known of a class of causes, whatever the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.domain.diagnosis import Cause


class Permanence(StrEnum):
    """Would the same job, unchanged, run on other healthy nodes?"""

    TRANSIENT = "transient"  # Yes: it passes, or is bound to a node that failed.
    PERMANENT = "permanent"  # No.
    UNCLEAR = "unclear"  # The log cannot say.


class Scope(StrEnum):
    """Where the fault is, which says who can mend it."""

    WORKER = "worker"
    NODE = "node"
    NETWORK = "network"
    STORAGE = "storage"
    SCHEDULER = "scheduler"
    EXTERNAL = "external"
    JOB_CODE = "job_code"
    DATA = "data"
    CONFIG = "config"
    NONE = "none"


class Role(StrEnum):
    """What part something in a log has in the story of a failure."""

    ROOT = "root"
    ECHO = "echo"  # What others do when one is gone. It never wins while there is a root.
    CLEAN_UP = "clean_up"  # A launcher ends the survivors.
    NOTE = "note"  # Worth reading, and no evidence of a failure.


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseClass:
    name: str
    definition: str
    permanence: Permanence  # Where nothing in the log says more.
    scope: Scope
    action: str  # The first remedy, in words a person can follow now, where the permanence is that of the class.
    page: str  # What the documentation says of it: how it looks, and what to check.
    seen_as: tuple[Cause, ...] = ()  # What the core names it from exits and findings, before any log is read.
    role: Role = Role.ROOT
    look_alikes: tuple[str, ...] = ()  # Classes it is mistaken for, or that hide behind it.
    hardware_persists: bool = False  # The part stays bad although the job would run elsewhere.
    retries: int | None = None  # How often it makes sense to try the same again; None where nothing speaks against it.
    otherwise: Mapping[Permanence, str] = field(default_factory=dict)  # The first remedy where the log gives it another permanence.

    def advice(self, permanence: Permanence) -> str:
        """Returns the first remedy for a failure of this class that is as permanent as that."""
        return self.otherwise.get(permanence, self.action)
