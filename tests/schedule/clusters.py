"""Small clusters for tests, and a way to run them by hand."""

from __future__ import annotations

from holdfast.schedule.check import Auditor
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import Decisions, decide
from holdfast.schedule.job import JobRequest
from holdfast.schedule.place import NodeRoom
from holdfast.schedule.policy import Policy
from holdfast.schedule.tree import Account


def cluster_of(nodes: int, gpus: int, *accounts: Account, policy: Policy | None = None, gangs_report: bool = False) -> Cluster:
    return Cluster([NodeRoom(name=f"n{number}", gpus=gpus, domain=f"d{number // 2}") for number in range(nodes)], accounts, policy, gangs_report=gangs_report)


def ask(cluster: Cluster, id: str, gpus: int, now: float, *, user: str = "g/u", **more: object) -> None:
    cluster.submit(JobRequest(id=id, account=tuple(user.split("/")), gpus=gpus, **{"checkpoint_every_s": 1800.0, **more}), now)  # type: ignore[arg-type]


def running(cluster: Cluster) -> set[str]:
    return {job.request.id for job in cluster.running}


def decide_checked(cluster: Cluster, auditor: Auditor, now: float) -> Decisions:
    decisions = decide(cluster, now)
    auditor.decided(decisions, now)
    auditor.sweep()
    assert not auditor.failures, auditor.failures
    return decisions
