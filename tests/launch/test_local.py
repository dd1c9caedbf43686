"""Several nodes on one machine, each with a disk and a memory of its own that nobody else opens, and that are gone when it is."""

from __future__ import annotations

import os
import signal
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from end_to_end.jobs import Job, eventually, expected_result, lose_node

from holdfast.domain.job import JobSpec
from holdfast.launch.layout import JobDirectory
from holdfast.launch.local import LocalCluster

pytestmark = pytest.mark.unprivileged


def places(job: Job, node: str) -> tuple[Path, Path, Path]:
    return job.directory.node_state(node), job.directory.node_scratch(node), job.directory.node_shared_memory(node)


def opened_by(pid: int) -> set[str]:
    """What a process has open or mapped now."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return found | {line.split(maxsplit=5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if len(line.split(maxsplit=5)) == 6}


def test_each_node_has_places_of_its_own_that_no_process_of_another_node_has_open(state: Path) -> None:
    with Job(state, options=["--nodes", 2], arguments=["--steps", 100000]) as job:
        job.wait_for_step(10)
        gang = job.state().gang
        assert gang is not None
        for rank, node in enumerate(gang.nodes):
            (other,) = set(gang.nodes) - {node}
            assert all(place.is_dir() and stat.S_IMODE(place.stat().st_mode) == 0o700 for place in places(job, node))
            for pid in (job.agent(node), job.warm_parent(node), job.pid(rank)):
                trespass = [name for name in opened_by(pid) if any(name.startswith(str(place)) for place in places(job, other))]
                assert not trespass, f"process {pid} of {node} has open: {trespass}"
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert not job.directory.nodes.exists()
        assert not any(places(job, node)[2].exists() for node in gang.nodes)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_recovery_needs_nothing_of_another_nodes_places(state: Path) -> None:
    # The spare has to take over while the places of the lost node can be listed, entered and read by nobody.
    with Job(state, options=["--nodes", 2, "--spares", 1], arguments=["--steps", 300, "--step-s", 0.02]) as job:
        job.wait_for_step(20)
        gang = job.state().gang
        assert gang is not None
        lost = gang.nodes[1]
        lose_node(job, lost)
        for place in places(job, lost):
            place.mkdir(parents=True)
            place.chmod(0o000)
        try:
            eventually(lambda: [start for start in job.starts() if start.generation == 2], what="a second generation")
            job.hurry()
            job.finished()
        finally:
            for place in places(job, lost):
                if place.exists():
                    place.chmod(0o700)
                    place.rmdir()
    assert job.result() == expected_result(300, 2)


def test_a_lost_node_takes_its_disk_and_its_memory_with_it_and_its_agent_is_not_started_again(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--spares", 1], arguments=["--steps", 100000, "--step-s", 0.02]) as job:
        job.wait_for_step(10)
        gang = job.state().gang
        assert gang is not None
        lose_node(job, gang.nodes[0])
        eventually(lambda: [start for start in job.starts() if start.generation == 2 and start.rank == 0], what="rank 0 on the spare")
        job.wait_for_step(job.step() + 5)
        assert not any(place.exists() for place in places(job, gang.nodes[0]))
        assert not job.processes("holdfast.agent", f"{gang.nodes[0]}/state")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130


def test_domains_are_dealt_round_the_nodes_and_each_is_its_own_unless_asked(tmp_path: Path) -> None:
    for domains, expected in ((0, ["node-0", "node-1", "node-2", "node-3"]), (2, ["domain-0", "domain-1", "domain-0", "domain-1"])):
        spec = JobSpec(job="job", argv=("train.py",), nodes=3, spares=1, domains=domains)
        local = LocalCluster(JobDirectory(tmp_path / "job"), spec, interpreter="python3")
        assert [local._node_spec(number, node).domain for number, node in enumerate(local.node_names())] == expected


def test_gpus_are_dealt_to_the_nodes_in_order_and_temporary_files_are_a_nodes_own_only_when_asked(tmp_path: Path) -> None:
    spec = JobSpec(job="job", argv=("train.py",), nodes=2, gpus=(4, 5, 6, 7))
    local = LocalCluster(JobDirectory(tmp_path / "job"), spec, interpreter="python3")
    assert [local._node_spec(number, node).gpus for number, node in enumerate(local.node_names())] == [(4, 5), (6, 7)]
    assert local._node_spec(0, "node-0").temporary == ""
    private = LocalCluster(JobDirectory(tmp_path / "job"), replace(spec, private=True, gpus=()), interpreter="python3")
    nodes = [private._node_spec(number, node) for number, node in enumerate(private.node_names())]
    assert len({node.temporary for node in nodes}) == 2
    assert all(node.gpus == () for node in nodes)
    assert all(len(node.temporary) < len(tempfile.gettempdir()) + 50 for node in nodes), "there must be room for the path of a socket"
