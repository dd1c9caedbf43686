"""What is said of a job is so now, and what is not known is not made up."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from end_to_end.jobs import Job, command, eventually

from holdfast.cli.job import is_held

# A script without our lines: each rank counts in a file of its own, and the first process of rank 1 is killed at its 20th step.
PLAIN = """
import os, pathlib, signal, sys, time
rank, here = os.environ["RANK"], pathlib.Path(sys.argv[1])
for step in range(int(sys.argv[2])):
    time.sleep(0.05)
    (here / f"plain-{rank}").write_text(str(step))
    if rank == "1" and step == 20 and os.environ["HOLDFAST_GENERATION"] == "1" and "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _plain(state: Path, steps: int, *words: str) -> Job:
    script = state / "plain.py"
    script.write_text(PLAIN)
    return Job(state, options=["--nproc", 2], script=script, arguments=[state, steps, *words])


def _shown(name: str = "job") -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(command("show", name, "--json").stdout)
    return shown


def test_a_script_without_our_lines_has_no_goodput_at_any_length(state: Path) -> None:
    with _plain(state, 60) as job:
        job.finished()
    shown = _shown()
    buckets = {one["bucket"]: one["seconds"] for one in shown["ledger"]}
    assert shown["goodput"] is None
    assert "does not say when it steps" in shown["goodput_because"]
    assert buckets["unknown"] >= 2.9, "it was up for 60 steps of 0.05 s"
    assert "productive" not in buckets
    said = job.stderr.read_text()
    assert "goodput not known: the script does not say when it steps" in said
    assert "0.0 %" not in said.partition("unknown")[0].rpartition("goodput")[2]
    assert "–" in command("ps").stdout


def test_its_clock_goes_on_and_after_a_kill_all_its_work_is_done_again(state: Path) -> None:
    with _plain(state, 100000, "kill") as job:
        eventually(lambda: (state / "plain-1").exists(), what="a first step")
        eventually(lambda: job.incidents() and job.state().generation == 2, what="a second generation")
        first = _shown()["run_s"]
        eventually(lambda: _shown()["run_s"] > first + 0.5, what="a clock that goes on while nothing happens")
        assert "The script has told of no step" in eventually(lambda: command("watch", "job", "--once").stdout, what="a look")
        job.process.send_signal(signal.SIGINT)
        job.wait()
    said = job.stderr.read_text()
    assert _shown()["goodput"] is None
    assert "productive" not in said


def test_the_end_after_a_restart_from_nothing_has_no_cost_but_a_sentence(state: Path) -> None:
    with _plain(state, 40, "kill") as job:
        job.finished()
    (incident,) = _shown()["incidents"]
    assert (incident["from_nothing"], incident["seconds"]) == (True, None)
    said = job.stderr.read_text()
    assert "all work since the start is done again" in said
    assert "rendezvous" not in incident["bill"] or incident["bill"]["rendezvous"] < 1.5, "40 steps of training are no rendezvous"
    live = next(line for line in said.splitlines() if line.startswith("holdfast: incident 1 resolved after"))
    ended = next(line for line in said.splitlines() if line.startswith("holdfast: incident 1: "))
    assert live.removeprefix("holdfast: incident 1 ") in ended, "one figure, live and at the end"


def test_a_job_whose_launcher_is_gone_is_lost_and_says_how_to_go_on(state: Path) -> None:
    with Job(state, options=["--nproc", 2], arguments=["--steps", 100000, "--step-s", 0.02]) as job:
        job.wait_for_step(120)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait(10.0)
        eventually(lambda: not is_held(job.directory), what="the end of the launcher")
        eventually(lambda: not job.processes("light.py"), what="the end of the ranks")
    shown, (row,) = _shown(), json.loads(command("ps", "--json").stdout)
    assert (shown["phase"], row["phase"], row["running"]) == ("lost", "lost", False)
    assert "`holdfast resume job`" in shown["because"]
    assert abs(shown["step"] - job.step()) <= 60, "the newest that was seen, not the one of the last event ten seconds ago"
    assert "lost" in command("ps").stdout
    for words in (("attach",), ("watch",), ("stop",)):
        refused = command(*words, "job")
        assert refused.returncode != 0
        assert "its launcher is gone" in refused.stderr
    run_s = _shown()["run_s"]
    eventually(lambda: _shown()["run_s"] == run_s, what="a clock that stands")
    job.hurry()


@pytest.mark.parametrize("ranks", [2, 1])
def test_resuming_a_finished_job_says_so_and_takes_another_number_of_ranks(state: Path, ranks: int) -> None:
    with Job(state, options=["--nproc", 2], arguments=["--steps", 30, "--save-every", 10]) as job:
        job.finished()
    before = _shown()
    with Job(state, verb="resume", options=["--nproc-per-node", ranks]) as again:
        again.wait()
    assert f"the job has finished at step {before['step']}" in again.stderr.read_text()
    after = _shown()
    assert after["spec"]["ranks_per_node"] == ranks
    assert sum(one["percent"] or 0.0 for one in after["ledger"]) == pytest.approx(100.0), "the time when nobody ran it has no share"
    assert next(one["percent"] for one in after["ledger"] if one["bucket"] == "down") is None
    assert after["run_s"] < after["wall_s"]
