"""`holdfast bisect` where its runs do not come to their end: each is told of with its reason, none is ranked, and nothing is left. Without torch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint.disks import save_step
from end_to_end.jobs import SCRIPTS, Job, command, environment, eventually, is_alive

from holdfast.agent import tree
from holdfast.checkpoint.disk import Disk

STEP = 20


@pytest.fixture
def job(state: Path) -> Job:
    """One that has ended, on two ranks, with a file that is staged, and a checkpoint of step 20."""
    (state / "data").write_text("staged")
    with Job(state, script=SCRIPTS / "tried.py", arguments=[state / "kept-job"], options=["--nproc", 2, "--stage", state / "data"]) as job:
        job.finished()
    for rank in range(2):
        save_step(Disk(), job.directory.checkpoints, STEP, rank)
    return job


def tries(job: Job) -> list[dict[str, Any]]:
    path = job.kept / "tries"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def changed(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--change", change)]


@contextmanager
def bisecting(job: Job, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "bisect", "job", *map(str, arguments)], env=environment(), text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(240)
def test_what_did_not_finish_is_told_with_its_reason_and_never_ranked(state: Path, job: Job) -> None:
    asked = changed("lr=*2", "kill=1", "sleep=1", "raise=1", "exit=3", "quiet=1", "nan=1")
    done = command("bisect", "job", *asked, "--steps", 8, "--within", "15s", "--json", within_s=200.0, HOLDFAST_MICRO_BATCH="4")
    said = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert [(one["change"], one["matters"]) for one in said["effects"]] == [("nan=1", True), ("lr=*2", True)], said
    because = {one["run"]: one["because"] for one in said["unfinished"]}
    assert list(because) == ["kill=1", "sleep=1", "raise=1", "exit=3", "quiet=1", "nan=1"]
    assert "SIGKILL" in because["kill=1"] or "killed" in because["kill=1"]
    assert "(out of luck)" in because["kill=1"], "what it printed last says more than its signal"
    assert because["sleep=1"] == f"it was not done after 15 s, at step {STEP + 5}"
    assert "banana" in because["raise=1"]
    assert "code 3" in because["exit=3"]
    assert because["exit=3"].endswith("before its first step")
    assert because["quiet=1"].startswith("its script ended and no loss was seen")
    assert said["says"].startswith("nan=1 mattered most: the loss is not finite")
    assert said["says"].endswith("nothing is known of kill=1, sleep=1, raise=1, exit=3, quiet=1")
    assert not said["interrupted"]
    assert not said["not_begun"]
    started = {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["HOLDFAST_MICRO_BATCH"], bool(one["HOLDFAST_STAGED"])) for one in tries(job)}
    assert started == {("2", "2", "4", True)}
    assert not list(state.glob("bisect-*"))


def test_the_checkpoint_may_be_removed_while_the_runs_go_on(state: Path, job: Job) -> None:
    with bisecting(job, *changed("sleep=1", "lr=*2"), "--steps", 8, "--within", "15s", "--json") as process:
        eventually(lambda: bool(tries(job)), what="the first run")
        shutil.rmtree(job.directory.checkpoints)
        said = json.loads(process.communicate(timeout=120)[0])
    assert [one["change"] for one in said["effects"]] == ["lr=*2"]
    assert [one["run"] for one in said["unfinished"]] == ["sleep=1"]
    assert not list(state.glob("bisect-*"))


def test_checkpoints_on_a_disk_of_their_own_are_copied(state: Path, job: Job) -> None:
    other = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        if other.stat().st_dev == state.stat().st_dev:
            pytest.skip("there is one file system only")
        shutil.move(job.directory.checkpoints, other / "checkpoints")
        job.directory.checkpoints.symlink_to(other / "checkpoints")
        done = command("bisect", "job", *changed("lr=*2"), "--steps", 8, "--json")
    finally:
        shutil.rmtree(other)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["effects"][0]["change"] == "lr=*2"


def test_without_two_unchanged_runs_nothing_is_said_and_the_rest_is_not_tried(state: Path, job: Job) -> None:
    done = command("bisect", "job", *changed("lr=*2"), "--steps", 8, "--within", "1ms", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["effects"], said["not_begun"]) == (1, [], ["unchanged 2", "lr=*2"])
    assert said["says"].startswith("nothing can be said: 0 unchanged runs came to the end")
    assert not list(state.glob("bisect-*"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_prints_what_it_has_and_leaves_no_process(state: Path, job: Job, how: signal.Signals) -> None:
    with bisecting(job, *changed("sleep=1", "lr=*2"), "--steps", 8, "--json") as process:
        eventually(lambda: any(one["tune"] == "sleep=1" for one in tries(job)), what="the run that sleeps")
        below = [one.pid for one in tree.descendants(process.pid)]
        assert len(below) > 4
        process.send_signal(how)
        out, _ = process.communicate(timeout=60)
        said = json.loads(out)
        assert process.returncode == 130
    assert not any(map(is_alive, below))
    assert said["interrupted"]
    assert list(said["curves"]) == ["unchanged 1", "unchanged 2", "sleep=1"]
    assert said["unfinished"][0]["because"].startswith("it was interrupted")
    assert said["not_begun"] == ["lr=*2"]
    assert said["noise"] is not None
    assert not list(state.glob("bisect-*"))


def test_killed_it_takes_its_run_along_and_the_next_one_removes_the_rest(state: Path, job: Job) -> None:
    with bisecting(job, *changed("sleep=1"), "--steps", 8) as process:
        eventually(lambda: any(one["tune"] == "sleep=1" for one in tries(job)), what="the run that sleeps")
        below = [one.pid for one in tree.descendants(process.pid)]
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, below)), what="the end of the run")
    assert len(list(state.glob("bisect-*"))) == 1
    assert command("bisect", "job", *changed("exit=3"), "--steps", 8, "--within", "1ms").returncode == 1
    assert not list(state.glob("bisect-*"))


def test_a_run_whose_launcher_is_killed_leaves_nothing(state: Path, job: Job) -> None:
    with bisecting(job, *changed("sleep=1"), "--steps", 8, "--json") as process:
        eventually(lambda: any(one["tune"] == "sleep=1" for one in tries(job)), what="the run that sleeps")
        launcher = next(one.pid for one in tree.descendants(process.pid) if one.parent == process.pid)
        below = [one.pid for one in tree.descendants(launcher)]
        os.kill(launcher, signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["unfinished"][0]["because"].startswith("it was killed by SIGKILL")
    assert not any(map(is_alive, below))
    assert not list(state.glob("bisect-*"))
