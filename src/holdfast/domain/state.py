"""The state of a job: everything the core knows, as plain data. This is what a snapshot of the journal holds, and what people are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.domain.event import IntervalChosen, StopAsked
from holdfast.domain.fitting import Fitting
from holdfast.domain.goodput import Ledger
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase, JobSpec, Outcome
from holdfast.domain.mesh import Mesh
from holdfast.domain.notice import Notice
from holdfast.domain.profile import Profile
from holdfast.domain.scaling import Scaling
from holdfast.domain.treatment import Treatment, Window


class NodeState(StrEnum):
    READY = "ready"  # In the gang, or a spare.
    LOST = "lost"  # Silent. It may come back, and is then cleaned before it is used.
    CLEANING = "cleaning"  # Came back with an old generation still running; being told to stop it.
    GIVEN_UP = "given_up"  # Holds a process that cannot be killed.


@dataclass(slots=True, kw_only=True)
class Node:
    host: str
    peer: str = ""
    state: NodeState = NodeState.READY
    isolation: str = ""  # What holds its workers to their resources,
    unkept: str = ""  # and what of them it does not keep.
    lost_at: float = 0.0  # Since when it is silent, while it is.
    lost_in: int = -1  # The generation it was asked to begin before it fell silent, and did not answer: it may begin that yet.
    warm: bool = True  # Ranks can be forked there at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An effect that has not been answered."""

    kind: str
    node: str
    generation: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The store of a generation. It is asked for while the generation before it is still going down."""

    generation: int
    node: str
    port: int
    hosted: bool


@dataclass(slots=True, kw_only=True)
class Gang:
    """One membership. Ranks are `node_rank * ranks_per_node + local rank`, so a replacement takes over the ranks of the node it replaces."""

    generation: int
    nodes: tuple[str, ...]
    restore: str | None = None  # None: not asked yet. Empty: start fresh.
    restore_step: int = -1
    sources: dict[str, str] = field(default_factory=dict)  # Rank to the node that has its part of what is restored in memory.
    asked: bool = False  # Every node was told to start its ranks.
    started: set[str] = field(default_factory=set)  # Nodes whose ranks are up.
    exited: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)  # Not running where they were started, and no exit was told. It may still be on its way.
    finished: set[int] = field(default_factory=set)  # Those that exited with code 0.
    started_at: float = 0.0
    beats: bool = False  # Its workers have our trainer inside.
    ready: bool = False  # Every rank finished a step, or nothing can be seen inside and all are up.
    save_s: float = 0.0
    restore_s: float = 0.0
    rejoins: bool = False  # Every rank can leave when it breaks, and join the next one in the same process.
    sharded: bool = False  # No rank holds the state whole.
    waiting: dict[str, int] = field(default_factory=dict)  # It has broken: ranks that left it and wait, each with the step it holds whole; -1: none.
    reached: dict[str, int] = field(default_factory=dict)  # The last step that each of them has finished.
    not_asked: str = ""  # Why its ranks were stopped, and not asked to leave, when it broke.
    kept: tuple[int, ...] = ()  # Ranks that came over from the generation before, in the processes they had,
    kept_of: int = 0  # and which that was.
    treatment: Treatment = field(default_factory=Treatment)  # As its ranks were told.
    scaling: Scaling = field(default_factory=Scaling)
    holds: dict[str, int] = field(default_factory=dict)  # Rank to a number of what it holds, as far as they have said it.
    moved: dict[str, int] = field(default_factory=dict)  # Node to how much lower its ranks are than they were there, where they were dealt anew.


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The gang was given other nodes or another number of them."""

    at: float
    generation: int  # The one that was formed.
    before: tuple[str, ...]
    after: tuple[str, ...]
    by_choice: bool  # A gang that ran was stopped for it.
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A node is checked before it is trusted again: by itself, then its links, with idle nodes two by two."""

    because: str
    begun: bool = False  # It waits for an answer.
    partners: tuple[str, ...] = ()
    pair: tuple[str, ...] = ()  # Who listens and who calls now; empty: the node is looked at by itself.
    port: int = 0  # Where that one listens, once it does.
    results: tuple[tuple[str, str, bool], ...] = ()  # Pairs, and whether each passed.
    verdict: str = ""  # "returned", "retired" or "unclear"; empty: it is not over.
    said: str = ""  # What was seen.
    at: float = 0.0  # When it was over.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One fault that was answered before, what was done, and what came of it."""

    cause: str
    fingerprint: str
    step: int
    progressed: bool  # Training got further afterwards.
    rung: int = 0  # What was done; 0: not known.
    node: str = ""  # Who was to blame, where one node was.
    nodes: int = 0  # Of the gang that failed.
    at: float = 0.0
    came_back: bool = False  # It did not help: before it had proved itself the same was there again, or training did not go on as before.
    remedy: str = ""  # Of training gone wrong: what was tried,
    place: Window | None = None  # and the draws it went wrong with.
    ranks: tuple[int, ...] = ()  # Who had it first, where not all did.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A remedy for training gone wrong has been begun. It has passed once steps go beyond the place, and nothing is found for a while."""

    incident: int
    remedy: str
    step: int  # That many must be finished.
    suspect: str = ""  # The node whose ranks another one computes.
    distrusted: tuple[str, ...] = ()  # Checkpoints that were not to be restored before it was begun.
    anew: bool = False  # Little would be lost by beginning from nothing, where no checkpoint is old enough.


@dataclass(slots=True, kw_only=True)
class State:
    """Everything the core knows. It has one owner, and that is the core."""

    at: float = 0.0
    phase: JobPhase = JobPhase.WAITING
    spec: JobSpec | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    gang: Gang | None = None
    store: Store | None = None
    generation: int = 0
    unguarded: bool = False  # The script was seen not to beat.
    effects: int = 0
    pending: dict[str, Pending] = field(default_factory=dict)
    deadlines: dict[str, float] = field(default_factory=dict)  # Name to time; fired by `Ticked`.
    incidents: list[Incident] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    pauses: dict[str, float] = field(default_factory=dict)  # The longest pause that ended by itself at each place of the script.
    ledger: Ledger = field(default_factory=Ledger)
    step: int = -1  # The step every rank of the current gang has finished.
    step_best: int = -1  # The furthest the job ever was: up to here, work is done again.
    saved_step: int = -1
    interval: IntervalChosen | None = None  # How often is saved, and why.
    fitting: Fitting = field(default_factory=Fitting)  # What the job can hold in memory at once, as far as it was found out.
    started_with: dict[str, str] = field(default_factory=dict)  # The surroundings of the newest gang,
    worked_with: dict[str, str] = field(default_factory=dict)  # and of the newest that finished a step.
    treatment: Treatment = field(default_factory=Treatment)  # What training does otherwise than the script says, because it had gone wrong.
    trial: Trial | None = None  # A remedy for that, which has not proved itself yet.
    at_most: int = -1  # The newest step that the next gang may restore; -1: any.
    none_before: int = -1  # No checkpoint is from this step or before: one was looked for.
    deal: tuple[str, ...] = ()  # The nodes of the next gang in the order of their ranks, where that is to be another than before.
    distrusted: tuple[str, ...] = ()  # Checkpoints not to restore again.
    avoided: tuple[str, ...] = ()  # Nodes that are up and are taken only when there are no others.
    approved: int = 0  # The incident whose plan a person has let be carried out; 0: none.
    cordoned: dict[str, str] = field(default_factory=dict)  # Nodes that get no ranks of a new generation, and why. A person's word: nothing else lifts it.
    draining: tuple[str, ...] = ()  # Those of them that the running gang is to leave.
    checks: dict[str, NodeCheck] = field(default_factory=dict)  # The newest of each node that was left for another, or that somebody asked for.
    notices: dict[str, Notice] = field(default_factory=dict)  # Nodes that are to go. Kept when a person gives the node back: told again, it changes nothing.
    mesh: Mesh | None = None  # Of the whole gang: as it was seen, else as the user said. None: nothing is known of it.
    mesh_said: str = ""  # What is wrong with what the user said of it; empty: nothing that was seen.
    left_over: tuple[str, ...] = ()  # Nodes that are there and have no ranks, because the replica they were part of is not whole. They are taken first.
    smaller: str = ""  # Why a gang of fewer nodes than asked for may be formed; empty: it may not.
    moving: str = ""  # Why a gang that runs is being stopped, with a save, for one on other nodes; empty: it is not.
    renewing: str = ""  # Why a gang that runs is to save and start again where it is; empty: it is not.
    refused: dict[str, str] = field(default_factory=dict)  # Numbers of nodes on which the script does not run, and what it said.
    changes: list[Change] = field(default_factory=list)
    first_step_s: float | None = None  # What all ranks took that were started last, from when they were up until they had finished a step; None: not seen.
    absences: list[float] = field(default_factory=list)  # How long nodes that were lost stayed away, the newest last.
    poisoned: tuple[str, ...] = ()  # Those of them that gave a loss that is not finite as soon as they were restored.
    profiles: list[Profile] = field(default_factory=list)  # The newest ones; the last may be being taken.
    stop: StopAsked | None = None
    outcome: Outcome | None = None
    code: int = 0
    because: str = ""  # Why the job is where it is, in one sentence.

    @property
    def world_size(self) -> int:
        """Of the gang there is; of the one that was asked for, where there is none."""
        if self.spec is None:
            return 0
        return len(self.gang.nodes) * self.spec.ranks_per_node if self.gang is not None else self.spec.world_size

    def bill(self, since: float) -> dict[str, float]:
        """What was not productive from then until now, by bucket."""
        return self.ledger.bill(since, self.ledger.ends_at, self.gang.restore_s if self.gang is not None else 0.0)

    def keep(self, incident: Incident) -> None:
        """As it is now: it is found by its number."""
        assert self.incidents[incident.id - 1].id == incident.id
        self.incidents[incident.id - 1] = incident
