"""Profiles of real jobs, asked for at the command line: the slow rank and the healthy one beside it, in words and as traces."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from end_to_end.jobs import SCRIPTS, Job, command, environment, eventually

from holdfast.launch.layout import JobDirectory

USER_ERROR = 2
POINTS = (
    "control-journalled-ProfileAsked", "control-performed-CaptureProfile", "agent-recorded-CaptureProfile", "agent-performed-CaptureProfile",
    "agent-answered-CaptureProfile",
)  # fmt: skip
NO_TORCH = """
import time
import holdfast

run = holdfast.guard(save_every=0)
for _ in run.steps(1_000_000):
    time.sleep(0.01)
"""


def steps_in(trace: Path) -> set[str]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    return {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep#")}


def slow_rank_is_told_from_the_healthy_one(directory: JobDirectory, told: dict[str, Any]) -> None:
    assert (told["slow"], told["beside"], told["bottleneck"], told["missing"]) == ([1], [0], "compute", {})
    assert told["says"][0].startswith("rank 1 spends ")
    assert "in compute where rank 0 spends" in told["says"][0]
    assert "aten::mm" in told["says"][0]
    assert [one["rank"] for one in told["ranks"]] == [0, 1]
    assert [one["node"] for one in told["ranks"]] == ["node-0", "node-1"]
    healthy, slow = told["ranks"]
    assert slow["parts"]["compute"] > 2 * healthy["parts"]["compute"]
    assert Path(told["directory"]) == directory.profiles / told["name"]
    for one in told["ranks"]:
        numbers = range(one["first_step"], one["first_step"] + 4)
        assert steps_in(Path(told["directory"]) / one["trace"]) == {f"ProfilerStep#{number}" for number in numbers}


def test_a_rank_with_more_to_compute_is_found_profiled_and_explained_and_bad_wishes_get_a_sentence(state: Path) -> None:
    kept = state / "kept-job"
    with Job(state, options=["--nodes", 2, "--no-profile"], script=SCRIPTS / "uneven.py", arguments=[kept, 1], torch=True) as job:
        job.wait_for_step(5)
        eventually(lambda: (view := job.view()) and view.phase == "running" and view.step > 5, what="a job that trains")
        eventually(lambda: [one for incident in job.incidents() for one in incident.findings if one.kind == "slow_rank"], what="a slow rank that is found")
        asked = eventually(lambda: (said := command("profile", "job", "--steps", 4, "--json")).returncode == 0 and said.stdout, what="a profile")
        slow_rank_is_told_from_the_healthy_one(job.directory, json.loads(asked))

        refused = command("profile", "job", "--ranks", 7)
        assert refused.returncode == USER_ERROR
        assert "there is no rank 7; the job has ranks 0 to 1" in refused.stderr
        line = [sys.executable, "-m", "holdfast.cli", "profile", "job", "--steps", "50", "--ranks", "all"]
        with subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            assert first.stderr is not None
            assert "profiling ranks 0-1" in first.stderr.readline()
            second = command("profile", "job")
            said, _ = first.communicate(timeout=60)
        assert first.returncode == 0
        assert "bottleneck: compute" in " ".join(said.split())
        assert "rank-0" not in said
        assert f"traces in {job.directory.profiles}" in " ".join(said.split())
        assert second.returncode == USER_ERROR
        assert "a profile is being taken" in second.stderr
        assert command("stop", "job").returncode == 0
    ended = command("profile", "job")
    assert ended.returncode == USER_ERROR
    assert "job 'job' is not running" in ended.stderr
    shown = command("show", "job")
    assert "bottleneck: compute" in " ".join(shown.stdout.split())
    assert all(incident.stands for incident in job.incidents()), "that the rank is slow may be found too, and that a profiler runs is no hang"
    assert not any(one.incident for one in job.state().profiles), "none by itself, as it was told"
    assert command("replay", "job").returncode == 0


@pytest.mark.slow
def test_a_slow_rank_that_is_found_is_profiled_by_itself_and_its_story_tells_of_it(state: Path) -> None:
    with Job(state, options=["--nodes", 2], script=SCRIPTS / "uneven.py", arguments=[state / "kept-job", 1], torch=True) as job:
        job.wait_for_step(5)
        taken = eventually(lambda: [one for one in job.state().profiles if one.ended_at], within_s=110.0, what="a profile by itself")
        assert command("stop", "job").returncode == 0
    assert (taken[0].slow, taken[0].beside, taken[0].bottleneck) == ((1,), (0,), "compute")
    incident = job.incidents()[taken[0].incident - 1]
    assert "slow_rank" in {finding.kind for finding in incident.findings}
    assert any(f"traces in profiles/{taken[0].name}" in line.what for line in incident.story)
    assert len([one for one in job.state().profiles if one.incident == incident.id]) == 1
    assert f"incident {incident.id} was profiled: rank 1 spends" in " ".join(job.stderr.read_text().split())


def test_a_script_without_torch_is_told_that_there_is_nothing_to_profile_with(state: Path) -> None:
    """And that control and agent die at every step of the asking changes nothing of the answer."""
    script, used = state / "train.py", state / "used"
    script.write_text(NO_TORCH)
    used.mkdir()
    with Job(state, script=script, env={"HOLDFAST_CRASH_AT": ",".join(POINTS), "HOLDFAST_CRASH_ONCE": str(used)}) as job:
        eventually(lambda: (view := job.view()) and view.phase == "running" and view.step > 5 and job.state().gang.ready, what="a job that trains")
        asked = command("profile", "job", "--ranks", 0)
        assert asked.returncode == 1, asked.stderr
        assert "the script has not imported torch" in asked.stdout
        assert {path.name for path in used.iterdir()} == set(POINTS)
        assert len(job.state().profiles) == 1
        assert job.state().generation == 1, "the worker noticed nothing"
        assert command("stop", "job").returncode == 0
