"""`holdfast chaos` on a real job: only on one that was started for it; what it did is found, answered, put right and told, and training goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.jobs import Job, command, environment

from holdfast.chaos.faults import FAULTS
from holdfast.chaos.plan import planned

ENDLESS = ["--steps", 1_000_000, "--step-s", 0.02]
KEYS = ("worker_killed", "agent_killed", "control_killed")
SEED, RATE = 8, 100.0


def test_only_a_running_job_that_was_started_for_faults_is_struck(state: Path) -> None:
    with Job(state, options=["--nproc", 2], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        said = command("chaos", "job")
        assert said.returncode == 2
        assert "holdfast run --chaos" in said.stderr
        assert len(job.starts()) == 2
        assert not (job.directory.path / "chaos.lock").exists()
    said = command("chaos", "job")
    assert said.returncode == 2
    assert "is not running" in said.stderr


def test_a_storm_that_was_not_done_to_its_end_says_why_and_is_no_success(state: Path) -> None:
    with Job(state, options=["--nproc", 2, "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        asked = [sys.executable, "-m", "holdfast.cli", "chaos", "job", "--json", "--faults", "worker_killed", "--rate", "1000", "--count"]
        with subprocess.Popen([*asked, "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as storm:
            assert storm.stderr is not None
            assert "SIGKILL to rank" in storm.stderr.readline()
            storm.send_signal(signal.SIGINT)
            told = json.loads(storm.communicate(timeout=60.0)[0])
        assert (storm.returncode, told["cut_short"]) == (130, "it was interrupted")
        assert told["struck"][-1]["recovered"] is None  # Nobody has waited for that.
        with subprocess.Popen([*asked, "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as storm:
            assert storm.stderr is not None
            assert "SIGKILL to rank" in storm.stderr.readline()
            assert command("stop", "job").returncode == 0
            told = json.loads(storm.communicate(timeout=60.0)[0])
        assert (storm.returncode, told["cut_short"]) == (1, "the job had ended")
        assert len(told["struck"]) + len(told["not_struck"]) == 1000


@pytest.mark.timeout(300)
def test_three_faults_from_a_seed_are_found_answered_and_told(state: Path) -> None:
    asked = ("chaos", "job", "--json", "--count", 3, "--seed", SEED, "--rate", RATE, "--faults", ",".join(KEYS))
    plan = planned([FAULTS[key] for key in KEYS], count=3, per_1000_steps=RATE, world_size=2, seed=SEED, from_step=0)
    with Job(state, options=["--nproc", 2, "--chaos"], arguments=ENDLESS) as job:
        job.wait_for_step(1)
        possible = json.loads(command("chaos", "job", "--list", "--json").stdout)
        assert possible["worker_killed"] == ""
        assert "--spares" in possible["node_lost"]
        assert "two lines" in possible["exception"]
        said = command(*asked, within_s=240.0)
        assert said.returncode == 0, said.stdout + said.stderr + job.said()
        told = json.loads(said.stdout)
        assert [(one["fault"], one["rank"]) for one in told["struck"]] == [(strike.fault.key, strike.rank) for strike in plan]
        assert {one["fault"] for one in told["struck"]} == set(KEYS)
        assert all(one["recovered"] and one["right"] and one["named"] for one in told["struck"])
        killed = next(one for one in told["struck"] if one["fault"] == "worker_killed")
        assert killed["called"] == f"killed (rank {killed['rank']})"
        assert killed["lost_s"]
        assert not told["not_struck"]
        assert told["cut_short"] == ""
        job.wait_for_step(job.step() + 5)
        assert not (job.directory.path / "chaos-undo").exists()
