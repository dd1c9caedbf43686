"""The scheduler of this project, as a replay sees it: the same `Cluster` and `decide` that a control plane would run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import Decisions, decide
from holdfast.schedule.job import JobRequest
from holdfast.schedule.place import NodeRoom
from holdfast.schedule.policy import Policy
from holdfast.schedule.tree import Account
from holdfast.simulate.trace import TraceJob

_NODES_A_DOMAIN = 16


def nodes_of(count: int, gpus: int) -> list[NodeRoom]:
    """A fleet of equal nodes, sixteen to a leaf switch."""
    return [NodeRoom(name=f"node-{number}", gpus=gpus, domain=f"leaf-{number // _NODES_A_DOMAIN}") for number in range(count)]


def admission(nodes: Sequence[NodeRoom], accounts: Iterable[Account], policy: Policy) -> Callable[[TraceJob], str]:
    """Says of jobs, in order of submission, why one could never start under these accounts, or ''."""
    asked = Holdfast(list(nodes), accounts, policy)

    def why(job: TraceJob) -> str:
        try:
            asked.submit(replace(job, needs=()), job.submit_s)
        except UserError as refusal:
            return str(refusal)
        asked.cluster.withdraw(job.id, job.submit_s)
        return ""

    return why


class Holdfast:
    knows = "the user's limit where the trace has one; nothing else of a job's length"
    knows_needs = True

    def __init__(self, nodes: list[NodeRoom], accounts: Iterable[Account] = (), policy: Policy | None = None, *, checkpoint_every_s: float = 1800.0) -> None:
        self.cluster = Cluster(nodes, accounts, policy)
        self._checkpoint_every_s = checkpoint_every_s

    def submit(self, job: TraceJob, now: float) -> None:
        request = self.request(job)
        if self.cluster.policy.classes[request.priority].crosses:
            self.cluster.appoint(request.account)  # A trace holds what was admitted.
        self.cluster.submit(request, now)

    def request(self, job: TraceJob) -> JobRequest:
        """What of a job of a trace is asked for. Its duration is not among it."""
        gpus = job.gpus_min or job.gpus
        most = max(job.gpus, job.gpus_max)
        return JobRequest(
            id=job.id, account=(job.group, job.user or "-"), gpus=gpus, gpus_max=most if most > gpus else 0, priority=job.priority,
            estimate_s=job.estimate_s, checkpoint_every_s=self._checkpoint_every_s, needs=job.needs,
        )  # fmt: skip

    def end(self, id: str, now: float) -> None:
        self.cluster.end(id, now)

    def decide(self, now: float) -> Decisions:
        return decide(self.cluster, now)

    def node_failed(self, node: int, now: float) -> None:
        self.cluster.node_failed(node, now)

    def node_back(self, node: int, now: float) -> None:
        self.cluster.node_back(node, now)

    def suspect_gpus(self) -> int:
        """GPUs that run on nodes in doubt."""
        fleet = self.cluster.fleet
        return sum(fleet.total[node] - fleet.free[node] for node in fleet.suspects)

    def next_at(self) -> float:
        return self.cluster.next_at()
