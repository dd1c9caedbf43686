"""Events: what happened, in the past tense. They are journalled before the core sees them, and they carry the time.

`at` is seconds since the epoch as control's clock had it when the event was accepted; it never runs backwards within a journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.domain.collective import Collective
from holdfast.domain.exit import Exit
from holdfast.domain.finding import Finding
from holdfast.domain.job import JobSpec
from holdfast.domain.profile import STEPS, RankProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    at: float
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed:
    """The same job again, after it was stopped or its machine went away. The specification may be new."""

    at: float
    spec: JobSpec
    ran_until: float = 0.0  # The run before was seen to go on until then, which may be long after its last event.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeard:
    """An agent came, or came back. What it really runs is the truth."""

    at: float
    node: str
    host: str  # The address other nodes reach it at.
    peer: str = ""  # The same for its agent.
    running: dict[str, tuple[int, ...]] = field(default_factory=dict)  # Generation, as text, to the ranks alive on the node.
    isolation: str = ""  # What holds its workers to their resources.
    unkept: str = ""  # What was asked for and is not kept there, why, and what to do; empty: all is.
    warm: bool = True  # Ranks can be forked there at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWarmed:
    """Its warm parent has imported what it should, and what is to be staged is there."""

    at: float
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSeen:
    """The ranks of a node are in their loops, and each has said what it holds."""

    at: float
    node: str
    generation: int
    holds: dict[str, int]  # Rank to a number: the same number, the same state.
    dimensions: tuple[tuple[str, int, bool], ...] = ()  # Of the script's own mesh, if it has one: name, size, and whether that may be another.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent:
    at: float
    node: str
    since: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    at: float
    node: str
    generation: int
    exit: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingMade:
    at: float
    generation: int
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEnded:
    """What a finding claimed is so no longer. Only for those that stand beside a running gang."""

    at: float
    generation: int
    key: str
    because: str
    place: str = ""  # Of a pause that ended by itself: where it was,
    lasted_s: float = 0.0  # and how long it lasted.


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRestored:
    """Every rank has entered its loop."""

    at: float
    generation: int
    step: int
    restore_s: float = 0.0  # What the slowest rank spent restoring.
    done: int = 0  # Steps that every rank has done since, before anybody looked.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSeen:
    """Where the gang is. Told when every rank has finished its first step, when lost ground is made good, and now and then."""

    at: float
    generation: int
    step: int  # The step every rank has finished.
    save_s: float  # Spent saving since the generation started, by the slowest rank.
    rejoins: bool = False  # Every rank can leave a broken gang and join the next one in the same process.
    sharded: bool = False  # No rank holds the state whole: those who leave a broken gang go back to a checkpoint.
    left_s: float | None = None  # So long ago the last rank left its loop. None: not all have.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    at: float
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChosen:
    """How often to save was thought about anew, and the answer or what it rests on is another."""

    at: float
    generation: int
    every: int  # Steps.
    from_step: int  # All ranks save by it from this step on.
    automatic: bool  # False: the script or `--checkpoint-every` gave the number, and this says what it costs.
    because: str
    interval_s: float
    overhead: float  # Share of the time lost to saving and to work done again, expected.
    goodput: float  # Share of the time left for new work, expected.
    cheapest: int  # Steps: what would cost least.
    step_s: float
    failures: int  # What it rests on: so many seen,
    stall_s: float | None = None  # and so much for a save. None: not measured yet.


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectDone:
    at: float
    effect: str
    generation: int
    node: str
    port: int = 0  # StartStore, and CheckNode that listens.
    hosted: bool = True  # StartStore: False when the job's interpreter has no torch, and there is only a port nobody else uses.
    checkpoint: str = ""  # FindCheckpoint
    checkpoint_step: int = -1
    sources: dict[str, str] = field(default_factory=dict)  # Rank to the node that has its part in memory.
    stacks: dict[str, str] = field(default_factory=dict)  # CaptureStacks
    collectives: dict[str, tuple[Collective, ...]] = field(default_factory=dict)  # The same, and CaptureProfile: rank to where it is in each process group,
    communication: tuple[str, ...] = ()  # and what NCCL itself has to say.
    slow: tuple[int, ...] = ()  # ChooseRanks: to be looked at,
    beside: tuple[int, ...] = ()  # and to compare with.
    profiles: tuple[RankProfile, ...] = ()  # CaptureProfile
    missing: dict[str, str] = field(default_factory=dict)  # CaptureProfile: rank to why nothing came of it.
    waiting: dict[str, int] = field(default_factory=dict)  # PartGang: rank to the step it holds whole; -1: none.
    reached: dict[str, int] = field(default_factory=dict)  # And to the last one that it has finished.
    cannot: dict[str, str] = field(default_factory=dict)  # PartGang, StopGang: rank to why it did not leave its loop alive, where that is known.
    surroundings: dict[str, str] = field(default_factory=dict)  # StartGang on the gang's first node: what it was started with; empty: as the time before.
    passed: bool = True  # CheckNode,
    said: str = ""  # and what was seen.


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFailed:
    at: float
    effect: str
    generation: int
    node: str
    because: str
    permanent: bool = False  # Trying the same again cannot help.
    unkillable: tuple[int, ...] = ()  # StopGang: processes that SIGKILL did not end.


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    at: float
    because: str
    code: int  # What `holdfast run` exits with: 130 after Ctrl-C, 143 after SIGTERM, 129 after a lost terminal.
    now: bool = False  # True: no grace.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileAsked:
    """Somebody wants to know where the time goes."""

    at: float
    id: str = ""  # Of the wish: told twice, because control died before it answered, it is one wish.
    because: str
    ranks: tuple[int, ...] = ()  # Empty: the slow ones, with a healthy one beside them.
    all: bool = False
    steps: int = STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanApproved:
    """A person let the plan that waits be carried out."""

    at: float
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVetoed:
    """A person did not: the job is stopped, or another rung is taken."""

    at: float
    who: str = ""
    instead: str = ""  # The name of a rung that the plan has as a candidate.
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """A person, or a notice that the node will go, took it out of service."""

    at: float
    node: str
    because: str
    drain: bool = False  # The gang that runs is to leave it, at its next save.
    who: str = ""
    goes_at: float | None = None  # A notice: by then the gang must have left it. None: a person said so, and nothing is in a hurry.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    at: float
    node: str
    who: str = ""
    withdrawn: bool = False  # The notice was, by whoever gave it: what a person said of the node still counts.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAsked:
    """Somebody wants to know whether a node is well."""

    at: float
    node: str
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreatmentUndone:
    """Training is to be as the script says again."""

    at: float
    who: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """A deadline the core named has come; or control is back after it was `away`, and nobody could be heard since the last event."""

    at: float
    away: bool = False


Event = (
    JobSubmitted
    | JobResumed
    | NodeHeard
    | NodeWarmed
    | MeshSeen
    | NodeSilent
    | WorkerExited
    | FindingMade
    | FindingEnded
    | GangRestored
    | ProgressSeen
    | CheckpointSaved
    | IntervalChosen
    | EffectDone
    | EffectFailed
    | StopAsked
    | ProfileAsked
    | PlanApproved
    | PlanVetoed
    | NodeCordoned
    | NodeUncordoned
    | CheckAsked
    | TreatmentUndone
    | Ticked
)
EVENTS: tuple[type[Event], ...] = (
    JobSubmitted,
    JobResumed,
    NodeHeard,
    NodeWarmed,
    MeshSeen,
    NodeSilent,
    WorkerExited,
    FindingMade,
    FindingEnded,
    GangRestored,
    ProgressSeen,
    CheckpointSaved,
    IntervalChosen,
    EffectDone,
    EffectFailed,
    StopAsked,
    ProfileAsked,
    PlanApproved,
    PlanVetoed,
    NodeCordoned,
    NodeUncordoned,
    CheckAsked,
    TreatmentUndone,
    Ticked,
)
