"""A job: what a user asks for, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.domain.learned import Learned
from holdfast.domain.mesh import Mesh
from holdfast.domain.resources import Resources
from holdfast.domain.scaling import SmallerBatch


class JobPhase(StrEnum):
    WAITING = "waiting"  # For enough nodes, or for a back-off to pass.
    STARTING = "starting"
    RUNNING = "running"
    EXAMINING = "examining"  # Something is wrong; stacks are being captured before anything is killed.
    STOPPING = "stopping"
    ENDED = "ended"
    LOST = "lost"  # As it is shown, never as the core has it: it has not ended, and nobody runs it.


class Outcome(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"  # Asked to stop; can be resumed.
    FAILED = "failed"  # The budget for a cause is used up, or restarts are off.
    PERMANENT = "permanent"  # Trying again cannot help.
    BROKEN = "broken"  # Holdfast itself could not go on: no nodes left, a process that cannot be killed.


class Mode(StrEnum):
    """Who has the last word on a plan."""

    AUTO = "auto"  # It is carried out.
    ASK = "ask"  # A broken gang is stopped; what comes next waits for a person.
    ADVISE = "advise"  # The same, and a gang that still runs is left as it is: nothing is done but to say what would be.


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """So many plans in so much time: of one rung, of one cause, or of all."""

    count: int
    within_s: float
    rung: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MayChange:
    """How far a remedy may change hyper-parameters when training goes wrong. As it comes: not at all."""

    rate_min: float = 1.0  # The learning rate may become so many times what the script says, and no less.
    clip_min: float = 0.0  # Gradients may be clipped to this norm; 0: they are left alone.
    warm_up_max: int = 0  # The rate may be warmed up again over so many steps.

    def __str__(self) -> str:
        said = (
            f"lr={self.rate_min:g}" if self.rate_min < 1.0 else "",
            f"clip={self.clip_min:g}" if self.clip_min else "",
            f"warmup={self.warm_up_max}" if self.warm_up_max else "",
        )
        return ",".join(filter(None, said)) or "nothing"


SKIP_BATCHES = 8  # Steps' worth of data, where nothing was said: what a person would drop without a second thought.


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits and budgets. Every number is a decision a user may overrule."""

    mode: Mode = Mode.AUTO
    never: tuple[str, ...] = ()  # Rungs that are not to be stood on, by name.
    budgets: tuple[Budget, ...] = ()  # Beside those below.
    answer_wait_s: float = 86400.0  # So long a plan waits for a person; then the job is stopped, ready to be resumed.
    max_restarts: int | None = None  # A total, as torchrun counts; None leaves it to the budgets per cause.
    restarts_in_a_row: int = 10  # Of one cause, without a step of progress between them.
    same_fault_max: int = 2  # The same fingerprint at the same step this often is permanent.
    healthy_s: float = 60.0  # A script that does not beat is taken to have made progress after this long.
    node_wait_s: float = 60.0  # How long to wait for nodes when no spare is left.
    abort_grace_s: float = 1.0  # Between SIGTERM and SIGKILL when a gang is already broken.
    stop_grace_s: float = 30.0  # The same when a user or the platform asks a healthy gang to stop.
    part_wait_s: float = 2.0  # How long ranks of a broken gang may take to leave their collectives alive; then they are ended.
    rejoin_wait_s: float = 60.0  # And to be in their loops again with those who were lost; then all start anew.
    kill_wait_s: float = 5.0  # How long a process may take to die of SIGKILL before its node is given up.
    hang_limits: tuple[tuple[str, float], ...] = ()  # By phase, "" for all but the start: how long a rank may stand still; 0: for ever. Else it is learned.
    stacks_wait_s: float = 5.0
    check_wait_s: float = 90.0  # For one part of a node's check; no answer is a bad one.
    profile_wait_s: float = 180.0  # For a profile of a few steps to be taken and written; then it is lost.
    profile_every_s: float | None = 600.0  # By itself one is taken for what is slow, once for an incident and not more often than this; None: never.
    fetch_wait_s: float = 21600.0  # For finding a checkpoint where one may have to come from a remote store, whole.
    stage_wait_s: float = 21600.0  # More for a start, where files are to be staged before it.
    start_wait_s: float = 600.0  # For one start effect; a cold import of torch from a network disk takes minutes.
    unguarded_after_s: float = 30.0  # No beat for this long after the start: the script does not beat at all.
    backoff_after: int = 3  # The first failures in a row are answered at once, the next after 1, 2, 4, … seconds.
    backoff_max_s: float = 60.0
    notice_lead_s: float = 300.0  # So long before a node goes the gang leaves it: it is of use till then, and a stop may take a while.
    slow_wait_s: float = 180.0  # So long a rank must have held the gang back before it is asked whether its node is worth leaving,
    slow_back_s: float = 3600.0  # and so long such a node is left alone; twice as long the next time.
    resize_every_s: float = 60.0  # A gang that runs is not stopped sooner than this after the last change, to take in or leave a node; twice as long each time.
    smaller_batch: SmallerBatch | None = None  # What a gang that is smaller does with the batch; None: it keeps it.
    skip_batches: int | None = None  # The data of so many steps may be left out, in all; None: of a few, and only where the loss is not finite.
    may_change: MayChange = MayChange()
    trial_s: float = 10.0  # What a remedy was for is not found again for this long after its place was passed: then it has passed.
    verify_s: float = 120.0  # A remedy has worked when what it was for was not seen again for this long.
    calm_s: float = 30.0  # What stood beside a running gang and ended may come again for this long before its story is closed.


UNDER_CHAOS = (("", 30.0),)  # The `hang_limits` of a job that is struck on purpose: a fault is to be answered while somebody looks.


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEvery:
    """How often to save, as `--checkpoint-every` said. Neither of the two: as is best, whatever the script says."""

    steps: int | None = None  # 0: only when asked, at a stop and at the end.
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A file or directory to be on every node's own disk before ranks start there."""

    source: str
    target: str  # Its path below `HOLDFAST_STAGED`.


MET_LOOKS = 3  # So often in a row a target must be met before it is reached: not by one lucky batch.


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number the job is run for."""

    metric: str  # As it is listed: `loss`, `validation_loss`, `accuracy_ratio`, `user_<name>`.
    value: float
    below: bool = True  # Good is at or below the value; False: at or above it.

    def is_met_by(self, value: float) -> bool:
        return value <= self.value if self.below else value >= self.value

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.below else '>='} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the job may take, in time it is run. What is beyond them is found and explained; nothing is stopped for it unless that is asked for."""

    job_s: float | None = None
    epoch_s: float | None = None
    target: Target | None = None
    target_s: float | None = None
    stop: bool = False  # Beyond a limit: save, stop, and be ready to be resumed.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAt:
    """Where `/metrics` is answered, and to whom. The files are named here and never copied."""

    host: str = "127.0.0.1"
    port: int | None = None  # Of control; 0 for a free one, None for nowhere.
    agents_port: int = 0  # The agent of node N answers at this plus N; 0 for nowhere.
    token_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    job: str
    run: str = ""  # New with every `holdfast run`: tells a control that was killed from a job that is run again.
    argv: tuple[str, ...]  # The script or module and its arguments, as the user typed them.
    module: bool = False
    python: bool = True  # False: argv is a program to execute as it is.
    cwd: str = "."
    nodes: int = 1
    min_nodes: int = 0  # A gang of as few as this is better than none; 0: only the whole one will do.
    spares: int = 0
    ranks_per_node: int = 1
    mesh: Mesh | None = None  # How the ranks of the whole gang are laid out, as the user said. None: as it is seen.
    own_network: bool = False  # Each local node in a network namespace of its own.
    private: bool = False  # Temporary files and shared memory of its own on each node, gone with the job.
    resources: Resources = field(default_factory=Resources)
    gpus: tuple[int, ...] = ()  # Those it may see, dealt to the nodes in order; empty: all.
    domains: int = 0  # Failure domains of local nodes, dealt round; 0: each is its own.
    warm: bool = True
    preimport: tuple[str, ...] = ()
    remote: str = ""  # Where checkpoints are kept a second time: an address without credentials, for this job alone.
    generations_before: int = 0  # What the remote store has is of generations up to this one: a new one must be newer, also where the journal is gone.
    save_every: SaveEvery | None = None  # None: as the script says, and as is best where it says nothing.
    limits: Limits | None = None
    metrics: MetricsAt | None = None
    stage: tuple[Stage, ...] = ()
    power_cap_watts: float | None = None  # So low the limit of a GPU that is throttled for heat may be set; None: it is left alone.
    notice_file: str = ""  # Says that a node will go; `{node}` stands for its name. Empty: `notice` in the node's state directory.
    rules: tuple[str, ...] = ()  # Files of rules that add to those that come with Holdfast.
    alerts: str = ""  # The file that says who is told of incidents. Secrets are not in it, nor are they kept here.
    env: dict[str, str] = field(default_factory=dict)
    policy: Policy = Policy()
    shape: tuple[tuple[str, str], ...] = ()  # What decides how much it needs, as the user said: ("batch", "32"). Jobs of one shape are compared.
    learned: Learned | None = None  # From earlier jobs. None: nothing is known, or nothing of it is to be used.
    chaos: bool = False  # Faults may be injected into it on purpose.

    @property
    def world_size(self) -> int:
        """Of the whole gang; `State.world_size` is that of the one there is."""
        return self.nodes * self.ranks_per_node

    @property
    def least_nodes(self) -> int:
        return self.min_nodes or self.nodes
