"""Effects: what the core wants done, in the imperative.

Every effect has an id and a generation. It may be sent again after a crash and is applied at most once: who performs it records the id before
acting and answers a repeat with the recorded result. Each is answered by exactly one `EffectDone` or `EffectFailed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.domain.fitting import Fitting
from holdfast.domain.scaling import Scaling
from holdfast.domain.treatment import Treatment

CONTROL = "control"  # The node name of effects that control performs itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStore:
    """Bring up the store of a generation on `node`; its port is the result."""

    id: str
    generation: int
    node: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCheckpoint:
    """Say which checkpoint is the newest that is whole anywhere, in memory or on disk, but for those we no longer trust."""

    id: str
    generation: int
    node: str = CONTROL
    because: str
    distrusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGang:
    """Start this node's ranks of the gang."""

    id: str
    generation: int
    node: str
    because: str
    ranks: tuple[int, ...]
    node_rank: int
    nodes: int
    world_size: int
    store_host: str
    store_port: int
    store_hosted: bool  # False: the ranks find each other on their own at that address.
    restarts: int
    restore: str = ""  # Name of the checkpoint every rank restores; empty for none.
    sources: dict[str, str] = field(default_factory=dict)  # Rank to the peer that has its part in memory, where this node has not.
    save_every: int | None = None  # Steps from one save to the next, alike on all ranks; None: nothing was chosen yet.
    save_asked: bool = False  # Whatever the script says.
    fitting: Fitting = field(default_factory=Fitting)  # What its ranks may hold in memory at once.
    treatment: Treatment = field(default_factory=Treatment)  # What training does otherwise than the script says.
    scaling: Scaling = field(default_factory=Scaling)  # And because the gang is smaller than asked for.
    env: dict[str, str] = field(default_factory=dict)
    rejoin: bool = False  # The state comes from ranks that lived on, and not from `restore`.
    kept: tuple[int, ...] = ()  # These of the node's are in the processes of the generation before: they are told their place, the others are forked.
    kept_of: int = 0  # That generation,
    moved: int = 0  # and how much higher their ranks were in it, where the gang had another size.


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStacks:
    """Say what every rank of the generation on `node` is doing right now. Nothing is killed by it."""

    id: str
    generation: int
    node: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseRanks:
    """Say which ranks a profile should be of: those that are slow, these among them, with a healthy one beside them; or exactly these; or all."""

    id: str
    generation: int
    node: str = CONTROL
    because: str
    ranks: tuple[int, ...] = ()
    exactly: bool = False
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureProfile:
    """Have these ranks of the generation on `node` profile their next steps. Nothing is stopped for it, and what does not come in time is lost."""

    id: str
    generation: int
    node: str
    because: str
    ranks: tuple[int, ...]
    steps: int
    name: str  # Of the directory, among those of the job's profiles.
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopGang:
    """End every process of the generation on `node`. Done when none is left."""

    id: str
    generation: int
    node: str
    because: str
    graceful: bool  # True: SIGTERM and `grace_s` to save and leave. False: the gang is broken, nothing is worth waiting for.
    grace_s: float
    interrupt: bool = False  # A person pressed Ctrl-C: a script without our lines gets SIGINT instead of SIGTERM, as under torchrun.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGang:
    """Have the ranks of the generation on `node` leave their loops and wait for their new place, but for the culprits, who are ended; so is whoever does not
    wait in time. Done when no other process of it is left; who waits, and with which step, is the result."""

    id: str
    generation: int
    node: str
    because: str
    culprits: tuple[int, ...] = ()
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNode:
    """Check a node that no rank runs on: whether it computes rightly, by itself; or its link to another, of which one listens and the other calls."""

    id: str
    generation: int
    node: str
    because: str
    part: str  # "compute", "listen" or "call".
    host: str = ""  # Whom to call, and where it listens.
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """Take everything down and leave."""

    id: str
    generation: int
    node: str = CONTROL
    because: str
    outcome: str
    code: int


Effect = StartStore | FindCheckpoint | StartGang | CaptureStacks | ChooseRanks | CaptureProfile | StopGang | PartGang | CheckNode | EndJob
EFFECTS: tuple[type[Effect], ...] = (
    StartStore, FindCheckpoint, StartGang, CaptureStacks, ChooseRanks, CaptureProfile, StopGang, PartGang, CheckNode, EndJob
)  # fmt: skip
