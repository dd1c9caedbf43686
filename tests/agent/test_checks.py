"""Checks of a node on demand: by itself, and its link to another, of which one is really cut off."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from end_to_end.jobs import Job, command, eventually

from holdfast.agent.checks import check
from holdfast.domain.effect import CheckNode
from holdfast.domain.job import JobSpec
from holdfast.domain.node import NodeSpec
from holdfast.launch.namespaces import INTERFACE


def part(name: str, *, host: str = "", port: int = 0) -> CheckNode:
    return CheckNode(id="e1", generation=1, node="n", because="to see", part=name, host=host, port=port)


def spec(path: Path, host: str = "127.0.0.1") -> NodeSpec:
    where = str(path)
    return NodeSpec(
        node="n", host=host, control=where, state=where, scratch=where, shared_memory=where, logs=where, checkpoints=where, interpreter="python",
        job=JobSpec(job="j", argv=("t.py",)),
    )  # fmt: skip


def test_a_node_that_is_well_passes_by_itself(tmp_path: Path) -> None:
    answer = check(part("compute"), spec(tmp_path))
    assert answer["passed"], answer
    assert answer["said"]


def test_one_listens_and_the_other_calls_and_nobody_is_left(tmp_path: Path) -> None:
    port = check(part("listen"), spec(tmp_path))["port"]
    answer = check(part("call", host="127.0.0.1", port=port), spec(tmp_path))
    assert "there and back" in answer["said"]
    again = check(part("call", host="127.0.0.1", port=port), spec(tmp_path))
    assert not again["passed"], "it answered one, and left"
    assert "is not reached" in again["said"]


@pytest.mark.root
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs the `ip` command (Debian: apt install iproute2)")
def test_a_node_whose_network_is_cut_off_is_retired_and_given_back_when_it_is_well(state: Path) -> None:
    with Job(state, options=["--nodes", 1, "--spares", 3, "--own-network"], arguments=["--steps", 100000, "--step-s", 0.05]) as job:
        job.wait_for_step(5)
        gang = eventually(lambda: (gang := job.state().gang) is not None and gang.ready and gang, what="a gang that steps").nodes
        node = next(name for name in ("node-3", "node-2", "node-1") if name not in gang)

        def link(to: str) -> None:
            subprocess.run(["nsenter", "-t", str(job.agent(node)), "-n", "ip", "link", "set", INTERFACE, to], check=True, timeout=20)

        def checked() -> str:
            asked_at = time.time()
            assert command("check", job.name, node, HOLDFAST_STATE=str(state)).returncode == 0
            return eventually(lambda: (one := job.state().checks[node]).at >= asked_at and one.verdict, what="a verdict")

        link("down")  # Its agent reaches control through a socket of the file system, as before.
        assert checked() == "retired"
        assert "which passes with others" in job.state().cordoned[node]
        link("up")
        assert checked() == "returned"
        assert node not in job.state().cordoned
        os.kill(job.process.pid, signal.SIGINT)
        assert job.wait() == 130
