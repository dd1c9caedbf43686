"""`holdfast queue`, `holdfast why JOB`, `holdfast shares`: what they take. They look at a cluster file, or at a moment of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.common import NODE_GPUS_MAX, NODES_MAX, AsJson, SharedAs

ClusterFile = Annotated[Path | None, typer.Option("--cluster", metavar="FILE", help="Nodes, accounts and jobs, in YAML or JSON.", show_default="none")]
TraceFile = Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Or replay the jobs of this CSV file.", show_default="none")]
At = Annotated[str, typer.Option("--at", metavar="SECONDS", help="Up to this moment of the trace: seconds, or 36h, 3d.", show_default="its last submission")]
Nodes = Annotated[int, typer.Option(min=1, max=NODES_MAX, help="With a trace: nodes of the cluster.")]
GpusPerNode = Annotated[int, typer.Option("--gpus-per-node", min=1, max=NODE_GPUS_MAX, help="With a trace: GPUs of each.")]
PolicyName = Annotated[str, typer.Option("--policy", help="With a trace: who decides, holdfast or health-blind.")]
Days = Annotated[str, typer.Option(metavar="A:B", help="With a trace: only jobs that were submitted on these days.", show_default="all")]
Clip = Annotated[str, typer.Option(metavar="TIME", help="With a trace: no job runs longer.", show_default="as they are")]


def queue(
    cluster: ClusterFile = None, trace: TraceFile = None, at: At = "", nodes: Nodes = 160, gpus_per_node: GpusPerNode = 8, policy: PolicyName = "holdfast",
    days: Days = "", clip: Clip = "", accounts: SharedAs = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show who runs, who waits, why, and when it is expected to start."""
    from holdfast.cli.queue_shown import show_queue
    from holdfast.cli.queue_source import Source

    source = Source(cluster=cluster, trace=trace, at=at, nodes=nodes, gpus=gpus_per_node, policy=policy, days=days, clip=clip, accounts=accounts)
    show_queue(source, as_json=as_json)


def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its id.")],
    cluster: ClusterFile = None, trace: TraceFile = None, at: At = "", nodes: Nodes = 160, gpus_per_node: GpusPerNode = 8, policy: PolicyName = "holdfast",
    days: Days = "", clip: Clip = "", accounts: SharedAs = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Explain why a job waits: its place, what is ahead of it, what is in its way, what would clear it, and when it is expected to start."""
    from holdfast.cli.queue_shown import show_why
    from holdfast.cli.queue_source import Source

    source = Source(cluster=cluster, trace=trace, at=at, nodes=nodes, gpus=gpus_per_node, policy=policy, days=days, clip=clip, accounts=accounts)
    show_why(source, job, as_json=as_json)


def shares(
    cluster: ClusterFile = None, trace: TraceFile = None, at: At = "", nodes: Nodes = 160, gpus_per_node: GpusPerNode = 8, policy: PolicyName = "holdfast",
    days: Days = "", clip: Clip = "", accounts: SharedAs = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Down to jobs and their processes.")] = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what each group and user is entitled to, has used, and runs; with --jobs each job too, and what its processes have of it."""
    from holdfast.cli.queue_shown import show_shares
    from holdfast.cli.queue_source import Source

    source = Source(cluster=cluster, trace=trace, at=at, nodes=nodes, gpus=gpus_per_node, policy=policy, days=days, clip=clip, accounts=accounts)
    show_shares(source, jobs=jobs, as_json=as_json)
