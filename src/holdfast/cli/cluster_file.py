"""A cluster in a file, YAML or JSON: nodes, accounts, policy, jobs. What is wrong is told with file, line and field, what was seen, and what was expected.

    now_s: 36000                                          # default: the latest time in the file
    nodes:    [{name: a, gpus: 8, domain: leaf-1, count: 4, health: good}]
    accounts: [{name: vision, weight: 2, quota_gpus: 8}, {name: ann, in: vision, limit_gpus: 8, used_gpu_hours: 100}]
    policy:   {patience_s: 43200}                         # default: as schedule/policy.py has it
    jobs:     [{id: train, user: vision/ann, gpus: 8, submitted_s: 0, running_on: {a-0: 8}, running_since_s: 60}]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.cli.common import NODE_GPUS_MAX, NODES_MAX
from holdfast.cli.fields import Fields, document_of
from holdfast.cli.sharing import TOP, sharing_of
from holdfast.detect.rules.document import Value, nearest
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import JobRequest, Placement
from holdfast.schedule.needs import check_circle, check_needs, needed_first
from holdfast.schedule.place import Health, NodeRoom

_NODE = ("name", "gpus", "domain", "count", "health")
_JOB = (
    "id", "user", "gpus", "max_gpus", "priority", "submitted_s", "limit_s", "preemptible", "checkpoint_every_s", "needs", "running_on", "running_since_s",
    "firm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Job:
    line: int
    request: JobRequest
    submitted_s: float
    running_on: tuple[tuple[str, int], ...]
    since_s: float
    firm: bool


def read_cluster(path: Path) -> tuple[Cluster, float]:
    """The cluster as the file says it stands, and the time there. Nothing is decided yet."""
    return _Reader(str(path)).cluster(document_of(path, "nodes and jobs"))


class _Reader(Fields):
    def cluster(self, top: Value) -> tuple[Cluster, float]:
        fields = self.fields(top, TOP, "the file")
        nodes, healths = self.nodes(fields.get("nodes") or Value(top.line, items=[]), top)
        sharing = sharing_of(self, fields)
        jobs = [self.job(one) for one in self.items(fields.get("jobs"), "jobs")]
        times = [0.0, *(job.submitted_s for job in jobs), *(job.since_s for job in jobs if job.running_on)]
        now = self.number(fields["now_s"], "now_s") if "now_s" in fields else max(times)
        if now < max(times):
            self.refuse(fields["now_s"].line, f"now_s is {now:g} and something happened at {max(times):g}; clocks do not go back: raise it, or leave it out")
        with self.at_line(fields["accounts"].line if "accounts" in fields else top.line):
            cluster = Cluster(nodes, sharing.accounts, sharing.policy)
        self.fill(cluster, jobs)
        sharing.begin(cluster, now)
        for node, health in healths.items():
            cluster.judge(node, health, now)
        return cluster, now

    def nodes(self, value: Value, top: Value) -> tuple[list[NodeRoom], dict[int, Health]]:
        rooms: list[NodeRoom] = []
        healths: dict[int, Health] = {}
        for item in self.items(value, "nodes"):
            fields = self.fields(item, _NODE, "a node")
            name, count = self.text(fields, "name", item), self.whole(fields, "count", 1, least=1, most=NODES_MAX)
            gpus, domain = self.whole(fields, "gpus", None, least=1, most=NODE_GPUS_MAX, where=item), self.text(fields, "domain", None)
            health = self.choice(fields, "health", "good", tuple(one.value for one in Health))
            if len(rooms) + count > NODES_MAX:
                self.refuse(item.line, f"with node {name} there are {len(rooms) + count:,} nodes; expected {NODES_MAX:,} or fewer: leave some out")
            for number in range(count):
                if health != "good":
                    healths[len(rooms)] = Health(health)
                rooms.append(NodeRoom(name=name if count == 1 else f"{name}-{number}", gpus=gpus, domain=domain))
        twice = next((name for name, times in Counter(room.name for room in rooms).items() if times > 1), None)
        if twice is not None:
            self.refuse(value.line, f"two nodes are called {twice!r}; give each a name of its own")
        if not rooms:
            self.refuse(top.line, "no nodes are given; expected nodes such as [{name: a, gpus: 8, count: 4}]")
        return rooms, healths

    def job(self, item: Value) -> _Job:
        fields = self.fields(item, _JOB, "a job")
        id, user = self.text(fields, "id", item), self.text(fields, "user", item)
        on: tuple[tuple[str, int], ...] = ()
        if "running_on" in fields:
            places = fields["running_on"]
            if not places.fields:
                self.refuse(places.line, f"job {id}: running_on is {places.kind}; expected nodes and GPUs, such as {{a-0: 8}}")
            on = tuple((node, self.whole(places.fields, node, None, least=1, where=places)) for node in places.fields or {})
        submitted = self.number(fields["submitted_s"], "submitted_s") if "submitted_s" in fields else 0.0
        since = self.number(fields["running_since_s"], "running_since_s") if "running_since_s" in fields else submitted
        if since < submitted:
            self.refuse(item.line, f"job {id} runs since {since:g} and was submitted at {submitted:g}; a clock cannot go back: correct one of them")
        limit = self.number(fields["limit_s"], "limit_s", least=1.0) if "limit_s" in fields else None
        every = self.number(fields["checkpoint_every_s"], "checkpoint_every_s", least=1.0) if "checkpoint_every_s" in fields else None
        request = JobRequest(
            id=id, account=tuple(user.split("/")), gpus=self.whole(fields, "gpus", None, least=1, where=item), gpus_max=self.whole(fields, "max_gpus", 0),
            priority=self.text(fields, "priority", None) or "medium", estimate_s=limit, preemptible=self.yes(fields, "preemptible", True),
            checkpoint_every_s=every, needs=tuple(self.text({"needs": one}, "needs", one) for one in self.items(fields.get("needs"), "needs")),
        )  # fmt: skip
        return _Job(item.line, request, submitted, on, since, self.yes(fields, "firm", False))

    def fill(self, cluster: Cluster, jobs: list[_Job]) -> None:
        """Everything in the order in which it happened."""
        names = {node.name: number for number, node in enumerate(cluster.fleet.nodes)}
        named: dict[str, list[tuple[str, ...]]] = {}
        for one in cluster.tree.accounts[1:]:
            named.setdefault(one.name, []).append(one.path)
        by_id = {job.request.id: job.request for job in jobs}
        for job in jobs:
            with self.at_line(job.line):
                check_needs(job.request, by_id.get)
                check_circle(job.request, by_id.get)
        order = {id: number for number, id in enumerate(needed_first([job.request for job in jobs]))}
        happened = [(job.submitted_s, 0, order[job.request.id], job) for job in jobs]
        happened += [(job.since_s, 1, number, job) for number, job in enumerate(jobs) if job.running_on]
        for at, starts, _, job in sorted(happened, key=lambda one: one[:3]):
            if not starts:
                with self.at_line(job.line):
                    cluster.submit(replace(job.request, account=self.account(job, named)), at)
            elif job.request.needs:
                self.refuse(job.line, f"job {job.request.id} runs, and needs {job.request.needs[0]}, which has not ended; leave needs out: it had its turn")
            else:
                cluster.start(cluster.jobs[job.request.id], self.placement(cluster, names, job), at, firm=job.firm)

    def account(self, job: _Job, named: dict[str, list[tuple[str, ...]]]) -> tuple[str, ...]:
        """Whose it is: the whole path, or a name that only one account has."""
        said = job.request.account
        declared = named.get(said[0], []) if len(said) == 1 else []
        if len(declared) > 1 and said not in declared:
            which = " or ".join("/".join(path) for path in declared[:3])
            self.refuse(job.line, f"job {job.request.id} belongs to {said[0]}, and {len(declared)} accounts are called that; write the whole path: {which}")
        return declared[0] if len(declared) == 1 else said

    def placement(self, cluster: Cluster, names: dict[str, int], job: _Job) -> Placement:
        said = f"job {job.request.id}: running_on"
        for name, gpus in job.running_on:
            if name not in names:
                self.refuse(job.line, f"{said} names node {name!r}, which is not declared{nearest(name, names) or '; declare it under nodes'}")
            if gpus > cluster.fleet.free[names[name]]:
                self.refuse(job.line, f"{said} takes {gpus} GPUs of {name}, which has {cluster.fleet.free[names[name]]} free then; correct one of those there")
        if sum(gpus for _, gpus in job.running_on) != job.request.gpus:
            self.refuse(job.line, f"{said} adds up to {sum(gpus for _, gpus in job.running_on)} GPUs and gpus is {job.request.gpus}; make them the same")
        return tuple(sorted((names[name], gpus) for name, gpus in job.running_on))
