"""A node: where workers run. What its agent must know, written down by whoever launched it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.job import JobSpec

NO_FD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Everything here but `hidden` is either the node's own or reached through the message layer."""

    node: str
    host: str  # The address other nodes reach this one at.
    peer: str = ""  # Where its agent listens for the agents of other nodes.
    domain: str = ""  # What fails together with it.
    control: str  # Control's socket.
    state: str  # The node's own disk: effects it recorded, exits, stacks. Dies with the node.
    scratch: str  # The node's own disk, for the job. Dies with the node.
    shared_memory: str  # The node's own memory. Dies with the node.
    temporary: str = ""  # Where its workers put temporary files, if not where everybody does. Dies with the node.
    gpus: tuple[int, ...] = ()  # Those its workers may see; empty: all.
    notice: str = ""  # The file that says that the node will go, once it is there.
    logs: str  # Outlives the node.
    checkpoints: str  # Outlives the node.
    profiles: str = ""  # Outlives the node.
    interpreter: str
    job: JobSpec
    hidden: tuple[str, ...] = ()  # Paths of other nodes on the same machine, put out of reach where that is permitted.
    interface: str = ""  # The network interface that leads to the other nodes, where it has to be said.
    network_fd: int = NO_FD  # Held open for the agent: its network namespace, if it has one of its own.
    metrics_port: int = 0  # Where its agent answers `/metrics`; 0 for nowhere.
    orphan_grace_s: float = 30.0
    beat_every_s: float = 0.2  # While a worker starts or restores: a recovery waits for what is said.
    step_every_s: float = 0.5
    probe_every_s: float = 1.0

    @property
    def mark(self) -> str:
        """What every process of this node carries in its environment, and no process of another node or job does."""
        return self.shared_memory.rpartition("/")[2]
