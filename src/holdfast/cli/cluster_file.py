"""A cluster in a file, YAML or JSON: nodes, accounts, jobs. What is wrong is told with file, line and field, what was seen, and what was expected.

    now_s: 36000                                          # default: the latest time in the file
    nodes:    [{name: a, gpus: 8, domain: leaf-1, count: 4, health: good}]
    accounts: [{name: vision, weight: 2, quota_gpus: 8}, {name: ann, in: vision, limit_gpus: 8, used_gpu_hours: 100}]
    jobs:     [{id: train, user: vision/ann, gpus: 8, submitted_s: 0, running_on: {a-0: 8}, running_since_s: 60}]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from holdfast.detect.rules.document import Problem, Value, documents, nearest
from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.job import JobRequest, Placement
from holdfast.schedule.needs import check_circle, check_needs, needed_first
from holdfast.schedule.place import Health, NodeRoom
from holdfast.schedule.policy import Policy
from holdfast.schedule.tree import Account, in_tree

_TOP = ("now_s", "nodes", "accounts", "jobs")
_NODE = ("name", "gpus", "domain", "count", "health")
_ACCOUNT = ("name", "in", "weight", "quota_gpus", "limit_gpus", "may_borrow", "administers", "used_gpu_hours")
_JOB = (
    "id", "user", "gpus", "max_gpus", "priority", "submitted_s", "limit_s", "preemptible", "checkpoint_every_s", "needs", "running_on", "running_since_s",
    "firm",
)  # fmt: skip


class ClusterUnreadable(UserError):
    """A file that describes no cluster."""


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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterUnreadable(f"{path} cannot be read: {error}; expected YAML or JSON with nodes and jobs") from error
    found = documents(text, str(path))
    if isinstance(found, Problem):
        raise ClusterUnreadable(f"{found}; expected YAML or JSON with nodes and jobs")
    return _Reader(str(path)).cluster(found)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file

    def cluster(self, top: Value) -> tuple[Cluster, float]:
        fields = self.fields(top, _TOP, "the file")
        nodes, healths = self.nodes(fields.get("nodes") or Value(top.line, items=[]), top)
        accounts, used = self.accounts(fields.get("accounts"))
        jobs = [self.job(one) for one in self.items(fields.get("jobs"), "jobs")]
        times = [0.0, *(job.submitted_s for job in jobs), *(job.since_s for job in jobs if job.running_on)]
        now = self.number(fields["now_s"], "now_s") if "now_s" in fields else max(times)
        if now < max(times):
            self.refuse(fields["now_s"].line, f"now_s is {now:g} and something happened at {max(times):g}; clocks do not go back: raise it, or leave it out")
        with self.at_line(fields["accounts"].line if "accounts" in fields else top.line):
            cluster = Cluster(nodes, accounts, Policy())
        self.fill(cluster, jobs)
        for path, hours in used.items():
            cluster.used(path, hours * 3600.0, now)
        for node, health in healths.items():
            cluster.judge(node, health, now)
        return cluster, now

    def nodes(self, value: Value, top: Value) -> tuple[list[NodeRoom], dict[int, Health]]:
        rooms: list[NodeRoom] = []
        healths: dict[int, Health] = {}
        for item in self.items(value, "nodes"):
            fields = self.fields(item, _NODE, "a node")
            name, count = self.text(fields, "name", item), self.whole(fields, "count", 1, least=1)
            gpus, domain = self.whole(fields, "gpus", None, least=1, where=item), self.text(fields, "domain", None)
            health = self.choice(fields, "health", "good", tuple(one.value for one in Health))
            for number in range(count):
                if health != "good":
                    healths[len(rooms)] = Health(health)
                rooms.append(NodeRoom(name=name if count == 1 else f"{name}-{number}", gpus=gpus, domain=domain))
        names = [room.name for room in rooms]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            self.refuse(value.line, f"two nodes are called {twice!r}; give each a name of its own")
        if not rooms:
            self.refuse(top.line, "no nodes are given; expected nodes such as [{name: a, gpus: 8, count: 4}]")
        return rooms, healths

    def accounts(self, value: Value | None) -> tuple[list[Account], dict[tuple[str, ...], float]]:
        rows: list[tuple[Account, str | None]] = []
        used: dict[str, float] = {}
        for item in self.items(value, "accounts"):
            fields = self.fields(item, _ACCOUNT, "an account")
            name = self.text(fields, "name", item)
            if any(one.name == name for one, _ in rows):
                self.refuse(item.line, f"account {name!r} is declared twice; give each a name of its own")
            weight = self.number(fields["weight"], "weight") if "weight" in fields else 1.0
            if weight <= 0:
                self.refuse(fields["weight"].line, f"account {name} has weight {weight:g}; expected a number above 0, or for no GPUs limit_gpus: 0")
            limit = self.whole(fields, "limit_gpus", 0) if "limit_gpus" in fields else None
            if "used_gpu_hours" in fields:
                used[name] = self.number(fields["used_gpu_hours"], "used_gpu_hours", least=0.0)
            quota, borrow = self.whole(fields, "quota_gpus", 0), self.yes(fields, "may_borrow", True)
            administers, group = self.yes(fields, "administers", False), self.text(fields, "in", None) or None
            rows.append((Account(name=name, weight=weight, quota_gpus=quota, limit_gpus=limit, may_borrow=borrow, administers=administers), group))
        with self.at_line(value.line if value is not None else 1):
            accounts = in_tree(rows)
        paths = {account.name: account.path for account in accounts}
        return accounts, {paths[name]: hours for name, hours in used.items()}

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
        users = {account.name: account.path for account in cluster.tree.accounts[1:]}
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
                account = users.get(job.request.account[0], job.request.account) if len(job.request.account) == 1 else job.request.account
                with self.at_line(job.line):
                    cluster.submit(replace(job.request, account=account), at)
            elif job.request.needs:
                self.refuse(job.line, f"job {job.request.id} runs, and needs {job.request.needs[0]}, which has not ended; leave needs out: it had its turn")
            else:
                cluster.start(cluster.jobs[job.request.id], self.placement(cluster, names, job), at, firm=job.firm)

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

    # Values.

    @contextmanager
    def at_line(self, line: int) -> Iterator[None]:
        """What is refused in here is refused there."""
        try:
            yield
        except UserError as error:
            raise ClusterUnreadable(f"{self.file}:{line}: {error}") from error

    def refuse(self, line: int, what: str) -> NoReturn:
        raise ClusterUnreadable(f"{self.file}:{line}: {what}")

    def fields(self, value: Value, known: tuple[str, ...], what: str) -> dict[str, Value]:
        if value.fields is None:
            self.refuse(value.line, f"{what} is {value.kind}; expected a mapping with {', '.join(known)}")
        for key, line in value.twice.items():
            self.refuse(line, f"the key {key!r} is written twice; leave one out")
        for key, one in (value.fields or {}).items():
            if key not in known:
                self.refuse(one.line, f"{what} has the unknown key {key!r}{nearest(key, known) or '; expected one of ' + ', '.join(known)}")
        return value.fields or {}

    def items(self, value: Value | None, name: str) -> list[Value]:
        if value is not None and value.items is None:
            self.refuse(value.line, f"{name} is {value.kind}; expected a list")
        return (value.items or []) if value is not None else []

    def text(self, fields: dict[str, Value], key: str, needed: Value | None) -> str:
        value = fields.get(key)
        if value is None and needed is None:
            return ""
        text = (value.text or "").strip() if value is not None else ""
        if not text or not text.isprintable():
            line = value.line if value is not None else needed.line if needed is not None else 1
            self.refuse(line, f"{key} is {'missing' if value is None else repr(value.text) if value.text is not None else value.kind}; expected a name")
        return text

    def number(self, value: Value, key: str, *, least: float = -math.inf) -> float:
        try:
            number = float(value.text or "")
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < least:
            expected = "a number" if least == -math.inf else f"a number of {least:g} or more"
            self.refuse(value.line, f"{key} is {value.text if value.text is not None else value.kind!r}; expected {expected}")
        return number

    def whole(self, fields: dict[str, Value], key: str, default: int | None, *, least: int = 0, where: Value | None = None) -> int:
        value = fields.get(key)
        if value is None:
            if default is None:
                self.refuse(where.line if where is not None else 1, f"{key} is missing; expected a whole number of {least} or more")
            return default or 0
        number = self.number(value, key)
        if number != int(number) or number < least:
            self.refuse(value.line, f"{key} is {value.text}; expected a whole number of {least} or more")
        return int(number)

    def yes(self, fields: dict[str, Value], key: str, default: bool) -> bool:
        return self.choice(fields, key, str(default).lower(), ("true", "false")) == "true"

    def choice(self, fields: dict[str, Value], key: str, default: str, known: tuple[str, ...]) -> str:
        value = fields.get(key)
        text = default if value is None else (value.text or "").strip().lower()
        if text not in known:
            self.refuse(value.line if value is not None else 1, f"{key} is {text!r}; expected {' or '.join(known)}")
        return text

