"""Where the files of a job are."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


def past_database(root: Path) -> Path:
    """What is known of earlier jobs: incidents, service, corrections. One file for all of them."""
    return root / "history.db"


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """`jobs/<id>/` under the state directory: what outlives nodes, and under `nodes/` what does not."""

    path: Path

    @property
    def job(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def spec(self) -> Path:
        return self.path / "job.json"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def profiles(self) -> Path:
        return self.path / "profiles"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def seen(self) -> Path:
        """Where the job was when control looked last."""
        return self.path / "seen.json"

    @property
    def series(self) -> Path:
        """The history of the job's series."""
        return self.path / "series.db"

    @property
    def past(self) -> Path:
        """The history shared by all jobs of this state directory."""
        return past_database(self.path.parent.parent)

    @property
    def alerts(self) -> Path:
        """What alerts were sent, and what must still be."""
        return self.path / "alerts.db"

    @property
    def metrics_url(self) -> Path:
        """Where control answers `/metrics`, while it does."""
        return self.path / "metrics.url"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    def node_state(self, node: str) -> Path:
        return self.nodes / node / "state"

    def node_spec(self, node: str) -> Path:
        return self.node_state(node) / "node.json"

    def node_notice(self, node: str) -> Path:
        """Where it is said that the node will go, if nowhere else."""
        return self.node_state(node) / "notice"

    def node_scratch(self, node: str) -> Path:
        return self.nodes / node / "scratch"

    def node_shared_memory(self, node: str) -> Path:
        return Path("/dev/shm") / f"{self.shared_memory_prefix}{node}"

    def node_temporary(self, node: str) -> Path:
        """Not below the job's directory: sockets are made in it, and their paths may have 107 bytes."""
        return Path(tempfile.gettempdir()) / f"{self.shared_memory_prefix}{node}"

    @property
    def shared_memory_prefix(self) -> str:
        """Of this job in this state directory, for this user: two of the same name elsewhere do not meet."""
        digest = hashlib.blake2b(os.fsencode(self.path.resolve()), digest_size=6).hexdigest()
        return f"holdfast-{os.getuid()}-{digest}-"

    def peer_socket(self, node: str) -> Path:
        """Where a node's agent listens for the others: outside of what they hide from each other."""
        return self.path / f"{node}.sock"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def checkpoint(self, name: str) -> Path:
        return self.checkpoints / name
