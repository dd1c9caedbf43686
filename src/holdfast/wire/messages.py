"""The messages. Every field is typed and checked on arrival; a message that does not fit its schema ends the connection, not the process."""

from __future__ import annotations

import msgspec

from holdfast.domain.finding import Finding
from holdfast.domain.goodput import Bucket
from holdfast.domain.held import Held
from holdfast.domain.signs import Signs

WIRE_VERSION = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Hello(Message, frozen=True, kw_only=True):
    """An agent introduces itself, on every connection."""

    node: str
    instance: str  # New with every agent process, so that its sequence numbers cannot be mistaken for an earlier one's.
    host: str
    pid: int
    peer: str = ""  # Where it listens for other agents.
    domain: str = ""
    version: int = WIRE_VERSION
    running: dict[str, tuple[int, ...]] = {}
    isolation: str = ""  # What holds its workers to their resources,
    unkept: str = ""  # and what of them it cannot keep, why, and what to do.
    warm: bool = True  # Ranks can be forked there at once; else it tells when they can.


class Told(Message, frozen=True, kw_only=True):
    """An event. Kept by the agent until it is acknowledged."""

    seq: int
    kind: str
    body: bytes


class Ack(Message, frozen=True, kw_only=True):
    seq: int  # Everything up to here is journalled.


class Do(Message, frozen=True, kw_only=True):
    """An effect."""

    kind: str
    body: bytes


class Reading(Message, frozen=True, kw_only=True):
    """One rank, as its agent sees it now."""

    rank: int
    generation: int
    pid: int
    step: int = -1
    steps_total: int = 0
    step_started: int = -1
    phase: str = ""
    phase_s: float = 0.0  # How long it has been in this phase.
    silent_s: float = 0.0  # How long since its last beat.
    loss: float | None = None
    grad_norm: float | None = None
    not_finite: tuple[str, ...] = ()  # Of these two, those that were reported and are NaN or infinite.
    was_finite: bool = False  # A loss was finite that it reported in this generation.
    samples: int = 0
    data_wait_s: float = 0.0
    save_s: float = 0.0
    saved_step: int = -1
    save_every: int = -1  # In steps; -1: nothing is saved.
    stall_s: float | None = None  # What a save costs training; None: not measured yet.
    follows: bool = False  # How often it saves is for control to say.
    guarded: bool = False
    restored: bool = False
    rejoins: bool = False  # It can leave a broken gang and join the next one in the same process.
    sharded: bool = False  # It would hold nothing whole then.
    cpu_share: float = 0.0
    memory_bytes: int = 0
    signs: Signs | None = None  # What is seen of it while it does not move; None: it moves.


class Uploading(Message, frozen=True, kw_only=True):
    """How the remote store stands, as the agent that sends to it sees it."""

    step: int = -1  # Of the newest checkpoint that is there.
    missing: int = -1  # Of one that is complete here, and on its way or still to be sent.
    error: str = ""  # What is wrong, as long as it is.


class Staged(Message, frozen=True, kw_only=True):
    """How far a node is with what is to lie on its disk before its ranks start."""

    done_bytes: int
    total_bytes: int  # 0: nothing has to be copied, or it is not known yet.
    error: str = ""  # What is wrong, as long as it is.


class Readings(Message, frozen=True, kw_only=True):
    """The heartbeat of an agent. Latest wins; none is kept."""

    node: str
    ranks: tuple[Reading, ...] = ()
    held: tuple[Held, ...] = ()  # What could be restored from its memory.
    durable_s: float = 0.0  # How long a snapshot takes to be durable, on its slowest rank.
    uploading: Uploading | None = None  # From the agent of rank 0, if there is a remote store.
    staged: Staged | None = None  # If the job has something to stage.
    cpu_s: float = 0.0  # What the agent itself has used: watching must cost little.


class Signals(Message, frozen=True, kw_only=True):
    """What an agent measured, once a second. Latest wins; none is kept. `columns` says what the values are of, each as metric and the thing it is of; it is
    sent when it has changed, and on every connection."""

    node: str
    values: tuple[float | None, ...]
    columns: tuple[tuple[str, str], ...] | None = None
    findings: tuple[Finding, ...] = ()  # What is wrong with the measuring itself and with saving, as long as it is.
    ended: dict[str, str] = {}  # How what was wrong came to its end, where there is more to say than that it has: by the finding's key.
    wall_s: float = 0.0  # The node's wall clock when it said this.


class Leave(Message, frozen=True, kw_only=True):
    """The job has ended: take everything down and exit."""

    persist: tuple[int, ...] = ()  # Ranks whose node is lost: make durable the copies of their state that you hold.
    upload_s: float = 0.0  # So long the newest checkpoint may take to arrive in the remote store.


class MakeDurable(Message, frozen=True, kw_only=True):
    """Make durable the copies you hold of this state: the gang that comes has another size, and reads it from the disk."""

    generation: int
    step: int


class Whole(Message, frozen=True, kw_only=True):
    """What is whole in memory, as generation and step."""

    sealed: tuple[int, int]  # Every rank has it.
    safe: tuple[int, int]  # And a copy, where there can be one: what is older may be written over.
    permit: int  # What the disk could not take and not every rank has may be written over by a save of this step or a later one: the same on all ranks.


class Hold(Message, frozen=True, kw_only=True):
    """Hold copies of the state of these ranks, and of no others: rank to the peer that has it."""

    of: dict[str, str]


class Interval(Message, frozen=True, kw_only=True):
    """From this step on the ranks of the generation save every so many steps. Latest wins."""

    generation: int
    from_step: int
    every: int


class Fetch(Message, frozen=True, kw_only=True):
    """An agent asks another for a rank's state: this one, or any that is newer."""

    rank: int
    generation: int
    step: int
    newer: bool


class Sending(Message, frozen=True, kw_only=True):
    """The answer: a snapshot of so many bytes follows in parts."""

    generation: int
    step: int
    data_bytes: int
    note_bytes: int
    index: bytes


class Part(Message, frozen=True, kw_only=True):
    data: bytes


class Refused(Message, frozen=True, kw_only=True):
    """There is nothing like it here, or no longer."""

    because: str


class Watch(Message, frozen=True, kw_only=True):
    """A viewer introduces itself."""

    figures: bool = False
    version: int = WIRE_VERSION


class Figures(Message, frozen=True, kw_only=True):
    """The newest values of the job's series, and all that stands now: once a second, to viewers that asked. Latest wins."""

    at: float
    values: tuple[tuple[str, str, str, float], ...]  # Metric, node, what of it, value.
    findings: tuple[Finding, ...] = ()
    nodes_left_out: int = 0  # There are more nodes than anybody looks at.


class StopJob(Message, frozen=True, kw_only=True):
    """A viewer asks for the job to be stopped."""

    because: str
    code: int
    now: bool = False


class OperatorSays(Message, frozen=True, kw_only=True):
    """A person approves or vetoes a plan, undoes a treatment, cordons, drains, uncordons or checks a node. Answered with `Agreed`, or `Refused` and why."""

    what: str  # "approve", "veto", "cordon", "drain", "uncordon", "check", "undo".
    node: str = ""
    instead: str = ""
    because: str = ""
    who: str = ""


class Agreed(Message, frozen=True, kw_only=True):
    """It is written down; this comes of it."""

    says: str


class AskProfile(Message, frozen=True, kw_only=True):
    """A viewer asks for a profile. Answered with `Asked`, or `Refused` with the reason; asked again under the same id, it is the same profile."""

    id: str
    ranks: tuple[int, ...] = ()  # Empty: the slow ones, with a healthy one beside them.
    all: bool = False
    steps: int


class Asked(Message, frozen=True, kw_only=True):
    """It is being taken, under this number."""

    number: int


class ProfileView(Message, frozen=True, kw_only=True):
    """The newest profile, while it is taken and after."""

    number: int
    slow: tuple[int, ...]
    beside: tuple[int, ...]
    waits_for: tuple[int, ...]  # The ranks nothing has come from yet.
    ended: bool


class NodeView(Message, frozen=True, kw_only=True):
    name: str
    state: str
    role: str  # "gang" or "spare".
    connected: bool
    service: str = ""  # "cordoned" or "draining", where a person said so, "going", where a notice did; or how far its staging is.


class IncidentView(Message, frozen=True, kw_only=True):
    id: int
    at: float
    phase: str
    cause: str
    because: str
    rung: str
    seconds: float
    stands: bool = False  # Nothing was stopped for it.


class SavingView(Message, frozen=True, kw_only=True):
    """How often is saved, and why."""

    every: int
    interval_s: float
    from_step: int
    automatic: bool
    because: str
    overhead: float


class View(Message, frozen=True, kw_only=True):
    """All a live view needs, several times a second."""

    job: str
    at: float
    phase: str
    because: str
    generation: int
    world_size: int
    outcome: str = ""
    code: int = 0
    step: int = -1
    steps_total: int = 0
    steps_per_s: float | None = None
    loss: float | None = None
    saved_step: int = -1
    held_step: int = -1  # The newest step that is whole in memory.
    saving: SavingView | None = None
    uploading: Uploading | None = None
    notes: tuple[str, ...] = ()  # What control has to say, each once.
    goodput: float | None = None  # None: not known.
    wall_s: float = 0.0
    buckets: dict[str, float] = {}
    nodes: tuple[NodeView, ...] = ()
    ranks: tuple[Reading, ...] = ()
    incidents: tuple[IncidentView, ...] = ()
    profile: ProfileView | None = None

    @property
    def run_s(self) -> float:
        """The wall time without the time when nobody ran the job."""
        return self.wall_s - self.buckets.get(Bucket.DOWN, 0.0)


AnyMessage = (
    Hello | Told | Ack | Do | Readings | Signals | Leave | Watch | StopJob | View | Whole | Hold | Interval | Fetch | Sending | Part | Refused
    | Figures | AskProfile | Asked | MakeDurable | OperatorSays | Agreed
)  # fmt: skip
