"""Where a queue comes from: a cluster file, with the scheduler's next decision taken; or a trace, replayed up to a moment."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.cluster_file import read_cluster
from holdfast.cli.replays import seconds, selected
from holdfast.cli.sharing import Sharing, read_sharing
from holdfast.cli.simulate import progress_bar
from holdfast.cli.words import one_line
from holdfast.errors import UserError
from holdfast.schedule.cluster import Cluster
from holdfast.schedule.cycle import Decisions, decide
from holdfast.simulate.policies.named import ON_NODES, scheduler_named
from holdfast.simulate.policies.ours import Holdfast, admission, nodes_of
from holdfast.simulate.replay import Replay
from holdfast.simulate.table import skipped_lines
from holdfast.simulate.trace import read_trace, refused, with_users


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    cluster: Path | None
    trace: Path | None
    at: str
    nodes: int
    gpus: int
    policy: str
    days: str
    clip: str
    accounts: Path | None = None

    def look(self) -> tuple[Cluster, Decisions]:
        """The cluster as it stands, and what was decided last to make it so."""
        if (self.cluster is None) == (self.trace is None):
            raise UserError("whose queue? Give --cluster FILE (an example is examples/cluster.yaml), or --trace FILE --at SECONDS")
        if self.cluster is not None:
            for option in ("accounts", "at", "days", "clip"):
                if said := getattr(self, option):
                    raise UserError(f"--{option} {said} is for a trace, and {self.cluster} says itself how things stand; leave it out")
            cluster, now = read_cluster(self.cluster)
            return cluster, decide(cluster, now)
        assert self.trace is not None, "one of the two is there"
        return self._replayed(self.trace), Decisions()

    def _replayed(self, path: Path) -> Cluster:
        if self.policy not in ON_NODES:
            raise UserError(f"policy {self.policy!r} cannot explain itself; expected {' or '.join(ON_NODES)}")
        trace = with_users(selected(read_trace(path), path, self.days, self.clip), 0)
        nodes = nodes_of(self.nodes, self.gpus)
        sharing = read_sharing(self.accounts, nodes) if self.accounts is not None else Sharing()
        large = refused(trace, self.nodes, self.gpus, why=admission(nodes, sharing.accounts, sharing.policy) if self.accounts is not None else None)
        for line in (*trace.notes, *skipped_lines([*trace.skipped, *large.values()])):
            print(f"holdfast: {path}: {one_line(line)}", file=sys.stderr)
        jobs = [job for job in trace.jobs if job.id not in large]
        if not jobs:
            because = next(iter(large.values())).because
            raise UserError(f"no job of {path} can ever start on {self.nodes} nodes of {self.gpus} GPUs: {because}; give more nodes, or other accounts")
        first, until = jobs[0].submit_s, self._until(jobs[-1].submit_s)
        if until < first:
            raise UserError(f"--at {self.at} is before the first job of {path}, which was submitted at {first:g}; give a later time")
        scheduler = scheduler_named(self.policy, nodes, sharing.policy, accounts=sharing.accounts)
        assert isinstance(scheduler, Holdfast), "those on nodes are ours"
        sharing.begin(scheduler.cluster, first)
        with progress_bar() as progress:
            task = progress.add_task("jobs that ended", total=sum(job.submit_s <= until for job in jobs))
            Replay(jobs, scheduler, restart_s=sharing.policy.restart_s, until=until, progress=lambda ended: progress.update(task, completed=ended)).run()
        scheduler.cluster.at(until)
        return scheduler.cluster

    def _until(self, last: float) -> float:
        if not self.at:
            return last
        try:
            at = float(self.at)
        except ValueError:
            at = math.nan
        return at if math.isfinite(at) else seconds(self.at, "--at")
