"""However `holdfast chaos` ends, what it did to a job is undone: with Ctrl-C, with SIGTERM, killed, and also killed together with its watchdog."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from end_to_end.jobs import Job, environment, eventually

from holdfast.agent import tree
from holdfast.chaos.undo import UNDO, in_network_of
from holdfast.launch.layout import JobDirectory
from holdfast.launch.namespaces import INTERFACE

ENDLESS = ["--steps", 1_000_000, "--step-s", 0.02]
AT_ONCE = "from holdfast.chaos import storm; storm.WARM_S = 0.0; from holdfast.cli import app; app()"  # Here nobody need notice what is done.
WAYS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@contextmanager
def struck(job: Job, fault: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`holdfast chaos` at the moment when it has done one fault; and the rank that it hit."""
    command = [sys.executable, "-c", AT_ONCE, "chaos", job.name, "--faults", fault, "--count", "1", "--rate", "1000"]
    more = {"HOLDFAST_STATE": str(job.directory.path.parent.parent)}
    with subprocess.Popen(
        command, env=environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as storm:
        try:
            assert storm.stdout is not None
            said = storm.stdout.readline()
            assert said.startswith("storm: "), f"{said}{storm.stderr.read() if storm.stderr is not None else ''}\n{job.said()}"
            yield storm, next((int(word) for word in said.split() if word.isdecimal()), 0)
        finally:
            storm.kill()


def put_right(job: Job, right: Callable[[], bool]) -> None:
    eventually(right, within_s=10.0, what="the end of the fault")
    eventually(lambda: not (job.directory.path / UNDO).exists(), within_s=10.0, what="the end of the record")
    job.wait_for_step(job.step() + 5)


def test_a_process_that_was_stopped_goes_on_and_the_job_with_it(state: Path) -> None:
    with Job(state, options=["--nproc", 2, "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        for way in WAYS:
            with struck(job, "worker_stopped") as (storm, rank):
                pid = job.pid(rank)
                eventually(lambda pid=pid: tree.state(pid) == "T", what="a stopped rank")
                storm.send_signal(way)
                put_right(job, lambda pid=pid: tree.state(pid) not in ("T", ""))
        assert len(job.starts()) == 2, "nobody was started anew for it"


@pytest.fixture
def own_disk(state: Path) -> Iterator[Path]:
    place = JobDirectory(state / "jobs" / "job").checkpoints
    place.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def free_bytes(place: Path) -> int:
    space = os.statvfs(place)
    return space.f_bavail * space.f_frsize


@pytest.mark.root
def test_a_disk_that_was_filled_has_its_room_again(state: Path, own_disk: Path) -> None:
    with Job(state, options=["--nproc", 2, "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        for way in WAYS:
            with struck(job, "disk_full") as (storm, _):
                assert free_bytes(own_disk) == 0
                storm.send_signal(way)
                put_right(job, lambda: free_bytes(own_disk) > 1 << 20)


@pytest.mark.root
def test_what_storm_and_watchdog_could_not_put_right_is_put_right_by_the_next_start_of_the_job(state: Path, own_disk: Path) -> None:
    with Job(state, options=["--nproc", 1, "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        with struck(job, "disk_full") as (storm, _):
            for pid in (*(one.pid for one in tree.descendants(storm.pid)), storm.pid):
                os.kill(pid, signal.SIGKILL)
            storm.wait()
        assert free_bytes(own_disk) == 0
        assert (job.directory.path / UNDO).exists()
    with Job(state, options=["--nproc", 1], arguments=ENDLESS) as job:
        put_right(job, lambda: free_bytes(own_disk) > 1 << 20)


@pytest.mark.root
def test_packets_that_were_delayed_go_their_old_way(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--own-network", "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        before = {node: network(job, node) for node in ("node-0", "node-1")}
        for way in WAYS:
            with struck(job, "packets_delayed") as (storm, _):
                assert {node: network(job, node) for node in before} != before
                storm.send_signal(way)
                put_right(job, lambda: {node: network(job, node) for node in before} == before)


def network(job: Job, node: str) -> str:
    """Its routes, its interfaces, and whether answers may come in by another one."""
    look = f"ip -o link; ip -4 route; cat /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/{INTERFACE}/rp_filter"
    return subprocess.run(in_network_of(job.agent(node), "sh", "-c", look), check=True, capture_output=True, text=True, timeout=20).stdout


@pytest.mark.root
def test_packets_that_were_lost_arrive_again_also_where_the_agent_is_gone_at_that_moment(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--own-network", "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        for way in WAYS:
            with struck(job, "packets_lost") as (storm, _):
                agents = [job.agent(node) for node in ("node-0", "node-1")]
                assert any(lossy(pid) for pid in agents)
                if way is signal.SIGKILL:
                    for pid in agents:
                        os.kill(pid, signal.SIGKILL)
                storm.send_signal(way)
                eventually(lambda: not any(lossy(job.agent(node)) for node in ("node-0", "node-1")), within_s=20.0, what="packets that arrive")
                put_right(job, lambda: True)


def lossy(pid: int) -> bool:
    seen = subprocess.run(in_network_of(pid, "tc", "qdisc", "show", "dev", INTERFACE), check=False, capture_output=True, text=True, timeout=20)
    return "clsact" in seen.stdout
