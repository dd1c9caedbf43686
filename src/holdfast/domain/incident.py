"""An incident: findings that belong together, with one story from first sign to outcome."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.domain.collective import Collective
from holdfast.domain.diagnosis import Diagnosis
from holdfast.domain.exit import Exit
from holdfast.domain.finding import Finding
from holdfast.domain.plan import Plan

FALSE_ALARM = "false_alarm"  # The outcome of an incident about a hang that was none.


class IncidentPhase(StrEnum):
    NOTICED = "noticed"
    EXAMINING = "examining"  # Stacks are being captured; nothing has been killed yet.
    STOPPING = "stopping"
    ACTING = "acting"
    RESOLVED = "resolved"
    GAVE_UP = "gave_up"


# What may follow what. A fault during recovery takes the incident back to stopping: it stays one story.
NEXT: dict[IncidentPhase, tuple[IncidentPhase, ...]] = {
    # One that stands beside a running gang is resolved when what was found has ended; one that breaks it goes on to a stop.
    IncidentPhase.NOTICED: (IncidentPhase.EXAMINING, IncidentPhase.STOPPING, IncidentPhase.RESOLVED, IncidentPhase.GAVE_UP),
    IncidentPhase.EXAMINING: (IncidentPhase.STOPPING, IncidentPhase.RESOLVED, IncidentPhase.GAVE_UP),
    IncidentPhase.STOPPING: (IncidentPhase.ACTING, IncidentPhase.RESOLVED, IncidentPhase.GAVE_UP),
    IncidentPhase.ACTING: (IncidentPhase.RESOLVED, IncidentPhase.EXAMINING, IncidentPhase.STOPPING, IncidentPhase.GAVE_UP),
    IncidentPhase.RESOLVED: (),
    IncidentPhase.GAVE_UP: (),
}


class IllegalMove(AssertionError):
    """Our own mistake: an incident was moved where it cannot go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the story."""

    at: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    id: int
    generation: int
    opened_at: float
    began_at: float  # When the fault happened, which is before it was noticed.
    phase: IncidentPhase = IncidentPhase.NOTICED
    closed_at: float | None = None
    findings: tuple[Finding, ...] = ()
    exits: tuple[Exit, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()  # More than one when the first remedy met another fault.
    plans: tuple[Plan, ...] = ()
    exits_judged: int = 0  # How many of `exits` and `findings` the diagnoses so far account for; the rest belongs to the next.
    findings_judged: int = 0
    stacks: dict[str, str] = field(default_factory=dict)  # Rank, as text, to what it was doing when it hung.
    collectives: dict[str, tuple[Collective, ...]] = field(default_factory=dict)  # The same for where it was in each process group, where that is recorded.
    communication: tuple[str, ...] = ()  # What NCCL had to say of it.
    story: tuple[Line, ...] = ()
    step_before: int = -1
    step_after: int = -1  # Where training went on; the difference is the work that had to be done again.
    step_resolved: int = -1  # What every rank had finished when it was resolved; -1: they do not tell.
    from_nothing: bool = False  # The ranks began from nothing and do not say how far they get: all work since the start is done again.
    costs: dict[str, float] = field(default_factory=dict)  # Seconds by bucket, from first sign to outcome.
    kept: bool = False  # Those who lived on went on in the processes they had.
    stands: bool = False  # Nothing was stopped for it: the gang runs on.
    outcome: str = ""  # Of its last plan: "worked", "came_back", "unsound", "false_alarm"; empty: not known yet, or never.
    ended: tuple[str, ...] = ()  # The keys of those of its findings that are so no longer.

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def is_calm(self) -> bool:
        """Whether everything it is about has ended."""
        return all(finding.key in self.ended for finding in self.findings)

    @property
    def acted(self) -> tuple[float, ...]:
        """When each plan that was carried out was begun with."""
        return tuple(line.at for line in self.story if line.what.startswith(f"{IncidentPhase.ACTING}:"))

    @property
    def carried_out(self) -> tuple[tuple[Plan, float], ...]:
        """Each plan that was begun with, and when. What was only proposed is none of them, and comes before them in an incident that was a warning first."""
        begun, found = [line for line in self.story if line.what.startswith(f"{IncidentPhase.ACTING}:")], []
        for plan in reversed(self.plans):
            if begun and begun[-1].what.endswith(f"{plan.name}: {plan.because}"):
                found.append((plan, begun.pop().at))
        return tuple(reversed(found))

    def act(self, at: float, plan: Plan) -> Incident:
        """The plan of one that stands beside its gang is begun with."""
        return self.tell(at, f"{IncidentPhase.ACTING}: {plan.name}: {plan.because}")

    def move(self, to: IncidentPhase, *, at: float, because: str) -> Incident:
        if to not in NEXT[self.phase]:
            told = "\n  ".join(f"{line.at:.3f} {line.what}" for line in self.story)
            raise IllegalMove(f"incident {self.id} cannot go {self.phase} -> {to}; its story so far:\n  {told}")
        closed_at = at if not NEXT[to] else None
        return replace(self.tell(at, f"{to}: {because}"), phase=to, closed_at=closed_at)

    def tell(self, at: float, what: str) -> Incident:
        return replace(self, story=(*self.story, Line(at=at, what=what)))
