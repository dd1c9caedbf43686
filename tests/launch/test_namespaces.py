"""Local nodes in namespaces of their own: what one node has, another cannot see; and when the job is gone, so is the network it ran on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, command, eventually, expected_result, is_alive

from holdfast.launch.namespaces import INTERFACE

needs_ip = pytest.mark.skipif(shutil.which("ip") is None, reason="needs the `ip` command (Debian: apt install iproute2)")
DDP = SCRIPTS / "ddp.py"


def network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


@pytest.mark.root
def test_what_is_hidden_is_hidden_from_this_process_and_from_nobody_else(state: Path) -> None:
    secret = state / "other" / "secret"
    secret.parent.mkdir()
    secret.write_text("mine")
    look = f"import os; from holdfast.launch.namespaces import hide; print(hide([{str(secret.parent)!r}]), os.listdir({str(secret.parent)!r}))"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "[]"]
    assert secret.read_text() == "mine"


@pytest.mark.unprivileged
@pytest.mark.skipif(os.getuid() == 0, reason="root may hide")
def test_hiding_without_the_right_to_changes_nothing_and_says_so(state: Path) -> None:
    (state / "seen").touch()
    look = f"import os; from holdfast.launch.namespaces import hide; print(hide([{str(state)!r}]), os.listdir({str(state)!r}))"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "['seen']"]


@pytest.mark.root
def test_no_process_of_a_node_sees_the_places_of_another_also_after_its_agent_was_killed(state: Path) -> None:
    with Job(state, options=["--nodes", 2], arguments=["--steps", 100000, "--step-s", 0.02]) as job:
        job.wait_for_step(10)
        old = job.agent("node-0")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: not is_alive(old) and job.agent("node-0") != old, what="another agent of node-0")
        job.wait_for_step(job.step() + 20)
        for rank, node in enumerate(["node-0", "node-1"]):
            (other,) = {"node-0", "node-1"} - {node}
            for pid in (job.agent(node), job.warm_parent(node), job.pid(rank)):
                for place in (job.directory.nodes / other, job.directory.node_shared_memory(other)):
                    assert os.listdir(place), "it is there"
                    # An agent hides them as soon as it has read what it is made of, which takes a moment.
                    eventually(lambda pid=pid, place=place: os.listdir(f"/proc/{pid}/root{place}") == [], what=f"{pid} of {node} not to see {other}")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
        assert not job.directory.nodes.exists()


@pytest.mark.root
@needs_ip
def test_nodes_with_networks_of_their_own_meet_and_a_killed_agent_comes_back_into_its_own(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--own-network"], arguments=["--steps", 300, "--step-s", 0.02]) as job:
        job.wait_for_step(10)
        networks = {node: network_of(job.pid(rank)) for rank, node in enumerate(["node-0", "node-1"])}
        assert len({*networks.values(), network_of(os.getpid())}) == 3
        assert INTERFACE in Path(f"/proc/{job.pid(1)}/net/dev").read_text()
        old = job.agent("node-1")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: not is_alive(old) and job.agent("node-1") != old, what="another agent of node-1")
        eventually(lambda: network_of(job.agent("node-1")) == networks["node-1"], what="its agent in the network of node-1")
        os.kill(job.pid(1), signal.SIGKILL)
        job.hurry()
        job.finished()
    assert job.result() == expected_result(300, 2)


@pytest.mark.root
@needs_ip
@pytest.mark.slow
def test_ddp_trains_across_networks_of_their_own(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--own-network"], script=DDP, arguments=[state / "kept-job", 30], torch=True) as job:
        job.finished(within_s=180)
    weights = [(job.kept / f"weights-{rank}").read_text() for rank in (0, 1)]
    assert weights[0] == weights[1]


@pytest.mark.root
@needs_ip
def test_a_launcher_that_is_killed_leaves_no_network_behind(state: Path) -> None:
    with Job(state, options=["--nodes", 2, "--own-network"], arguments=["--steps", 100000, "--step-s", 0.02]) as job:
        job.wait_for_step(10)
        networks = {network_of(job.pid(rank)) for rank in (0, 1)}
        job.process.kill()
        job.wait()
        eventually(lambda: not networks & living_networks(), what="the end of every process in a network of the job")
        eventually(lambda: not job.directory.control_socket.exists(), what="the end of control")
    assert "bridge" not in Path("/proc/net/dev").read_text()


def living_networks() -> set[str]:
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                found.add(network_of(int(name)))
            except OSError:
                continue
    return found


@pytest.mark.unprivileged
@pytest.mark.skipif(os.getuid() == 0, reason="root may")
@needs_ip
def test_a_network_of_its_own_is_refused_with_a_sentence_to_who_may_not_have_one(state: Path) -> None:
    done = command("run", "--own-network", SCRIPTS / "light.py", state, HOLDFAST_STATE=str(state))
    assert done.returncode == 2
    assert "only root may: run as root, or leave it out" in done.stderr
