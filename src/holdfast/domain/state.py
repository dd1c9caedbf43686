"""The state of a job: everything the core knows, as plain data. This is what a snapshot of the journal holds, and what people are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.domain.event import IntervalChosen, StopAsked
from holdfast.domain.goodput import Ledger
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobPhase, JobSpec, Outcome
from holdfast.domain.profile import Profile


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One fault that was answered before, and whether training got further afterwards."""

    cause: str
    fingerprint: str
    step: int
    progressed: bool


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
    ledger: Ledger = field(default_factory=Ledger)
    step: int = -1  # The step every rank of the current gang has finished.
    step_best: int = -1  # The furthest the job ever was: up to here, work is done again.
    saved_step: int = -1
    interval: IntervalChosen | None = None  # How often is saved, and why.
    distrusted: tuple[str, ...] = ()  # Checkpoints not to restore again.
    avoided: tuple[str, ...] = ()  # Nodes that are up and are taken only when there are no others.
    poisoned: tuple[str, ...] = ()  # Those of them that gave a loss that is not finite as soon as they were restored.
    profiles: list[Profile] = field(default_factory=list)  # The newest ones; the last may be being taken.
    stop: StopAsked | None = None
    outcome: Outcome | None = None
    code: int = 0
    because: str = ""  # Why the job is where it is, in one sentence.
