"""Jobs beside each other: what one takes beyond its limit is its own loss, and when it is gone nothing of it is left. With real control groups."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from end_to_end.jobs import SCRIPTS, Job, command, eventually, expected_result, is_alive
from observe.seeing import version_of_groups

from holdfast.core.base import PERMANENT_CODE
from holdfast.domain.diagnosis import Cause
from holdfast.domain.exit import ExitKind
from holdfast.domain.fitting import Fitting
from holdfast.domain.plan import Rung
from holdfast.launch.groups import homes

GREEDY = SCRIPTS / "greedy.py"
LIMIT = "150MB"
VERSION = version_of_groups()
needs_groups = pytest.mark.skipif(not VERSION, reason="needs writable control groups for memory, cores and processes")


@pytest.fixture
def beside() -> Iterator[Callable[..., Job]]:
    """Jobs as they are started on this machine. With version 2 in a group of its own each, since a group in which there are processes cannot be divided."""
    made: dict[str, Path] = {}

    def start(state: Path, name: str = "job", **given: Any) -> Job:
        if VERSION != 2:
            return Job(state, name, **given)
        if name not in made:
            made[name] = next(place.directory for place in homes().values()).parent / f"holdfast-test-{os.getpid()}-{name}"
            made[name].mkdir()
        return Job(state, name, group=made[name], **given)

    yield start
    for group in made.values():
        for below in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            below.rmdir()
        group.rmdir()


def greedy(beside: Callable[..., Job], state: Path, what: str, options: Sequence[object], name: str = "greedy") -> Job:
    return beside(state, name, options=["--max-restarts", 0, *options], script=GREEDY, arguments=[state / f"kept-{name}", what])


def groups_of(job: Job) -> list[Path]:
    """All that are there for a job, in every hierarchy."""
    prefix = job.directory.shared_memory_prefix
    return sorted(path for home in {place.directory for place in homes().values()} for path in (home.parent if VERSION == 2 else home).rglob(f"{prefix}*"))


def memory_group(pid: int) -> str:
    return next(line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if (":memory:" if VERSION == 1 else "0::") in line)


@pytest.mark.root
@needs_groups
def test_a_job_that_eats_beyond_its_memory_is_killed_alone_and_the_one_beside_it_finishes(state: Path, beside: Callable[..., Job]) -> None:
    with beside(state, "good", options=["--nproc", 2], arguments=["--steps", 300, "--step-s", 0.02]) as good:
        good.wait_for_step(5)
        with greedy(beside, state, "memory", ["--nproc", 2, "--memory", LIMIT]) as bad:
            assert bad.wait() == 128 + signal.SIGKILL, bad.said()
        (incident,) = bad.incidents()
        (diagnosis,) = incident.diagnoses
        assert (diagnosis.cause, diagnosis.ranks) == (Cause.OUT_OF_MEMORY, (1,))
        assert "rank 1 ran out of memory: the kernel killed it at the limit of 150 MB for the job on this node (--memory)" in diagnosis.because
        eaten = next(exit for exit in incident.exits if exit.rank == 1)
        assert (eaten.kind, eaten.signal) == (ExitKind.OUT_OF_MEMORY, signal.SIGKILL)
        good.hurry()
        good.finished()
    assert good.result() == expected_result(300, 2)
    assert len(good.starts()) == 2, "no rank of it was started twice"
    assert not good.incidents()
    assert not groups_of(good) + groups_of(bad)
    shown = json.loads(command("show", "greedy", "--json", HOLDFAST_STATE=str(state)).stdout)
    assert shown["nodes"]["node-0"]["isolation"] == f"cgroup v{VERSION}"
    assert shown["spec"]["resources"]["memory_bytes"] == 150_000_000
    assert f"memory 150 MB, on each node; kept by cgroup v{VERSION}" in " ".join(command("show", "greedy", HOLDFAST_STATE=str(state)).stdout.split())


def leaking(beside: Callable[..., Job], state: Path, *options: object) -> Job:
    """It takes a quarter more than it may in all, a little with each step; nothing smaller would help."""
    return beside(state, options=["--memory", LIMIT, *options], script=SCRIPTS / "leaking.py", arguments=[state / "kept-job", 190, 1_000_000])


@pytest.mark.root
@needs_groups
def test_a_job_that_leaks_saves_and_starts_again_before_it_is_killed_for_it(state: Path, beside: Callable[..., Job]) -> None:
    with leaking(beside, state) as job:
        job.finished()
    assert job.incidents()
    for incident in job.incidents():  # One, or two where the first was seen early.
        (finding,), (plan,) = incident.findings, incident.plans
        assert not incident.exits, "nobody was killed"
        grows = r"rank 0's memory grew by [\d.]+ (MB|MiB) a step over \d+ steps, .*: \d+ of 150 MB of memory are left, which it fills in"
        assert (finding.kind, bool(re.search(grows, incident.diagnoses[-1].because))) == ("memory_leak", True), incident
        assert plan.because.startswith("before its memory is full: a leak fills what there is")
        assert (plan.rung, plan.fitting) == (Rung.RESPAWN, Fitting())
    assert job.incidents()[0].outcome == "worked"
    took = [int(step) for step in (job.kept / "took").read_text().split()]
    assert took == list(range(190)), "each step once"


@pytest.mark.root
@needs_groups
def test_a_job_that_was_killed_for_a_leak_is_told_so_and_would_be_started_again_as_it_was(state: Path, beside: Callable[..., Job]) -> None:
    with leaking(beside, state, "--policy", "advise") as job:
        job.wait_for_step(10)
        eventually(lambda: any(incident.exits_judged for incident in job.incidents()), what="the kill")
        job.process.send_signal(signal.SIGINT)
        job.wait()
    diagnosis, plan = job.incidents()[0].diagnoses[-1], job.incidents()[0].plans[-1]
    assert (diagnosis.cause, diagnosis.fingerprint) == (Cause.OUT_OF_MEMORY, "out_of_memory:leak")
    assert "rank 0 ran out of memory: the kernel killed it at the limit of 150 MB" in diagnosis.because
    assert re.search(r"it leaks: memory grew by [\d.]+ (MB|MiB) a step over \d+ steps, from ", diagnosis.because)
    assert (plan.rung, plan.fitting) == (Rung.RESPAWN, Fitting())


@pytest.mark.root
@needs_groups
def test_a_job_that_needs_more_gets_it_up_to_what_it_may_have_and_then_it_is_said(state: Path, beside: Callable[..., Job]) -> None:
    with beside(state, options=["--memory", "100MB:300MB"], script=GREEDY, arguments=[state / "kept-job", "memory"]) as job:
        assert job.wait() == PERMANENT_CODE, job.said()
    (incident,) = job.incidents()
    assert [plan.fitting.memory_bytes if plan.fitting else 0 for plan in incident.plans[:3]] == [200_000_000, 300_000_000, 0]
    assert "100 MB were too little (--memory): all ranks start again with 200 MB on each node, and may have 300 MB" in incident.plans[0].because
    limits = [re.findall(r"at the limit of (\d+ MB) for the job", one.because) for one in incident.diagnoses]
    assert limits[:3] == [["100 MB"], ["200 MB"], ["300 MB"]], "and each try had what it was given"


@pytest.mark.root
@needs_groups
def test_a_worker_that_eats_beyond_its_own_memory_is_named_with_its_own_limit(state: Path, beside: Callable[..., Job]) -> None:
    with greedy(beside, state, "memory", ["--nproc", 2, "--memory-per-worker", LIMIT]) as job:
        assert job.wait() == 128 + signal.SIGKILL, job.said()
    assert "rank 1 ran out of memory: the kernel killed it at the limit of 150 MB for each worker (--memory-per-worker)" in job.state().because


@pytest.mark.root
@needs_groups
def test_every_worker_has_a_group_of_its_own_also_without_limits_and_two_nodes_do_not_meet(state: Path, beside: Callable[..., Job]) -> None:
    with beside(state, options=["--nodes", 2, "--nproc", 2], arguments=["--steps", 100000]) as job:
        job.wait_for_step(5)
        groups = [memory_group(job.pid(rank)) for rank in range(4)]
        prefix = job.directory.shared_memory_prefix
        tails = [group.partition(prefix)[2] for group in groups]
        assert tails == ["node-0.job/rank-0.g1", "node-0.job/rank-1.g1", "node-1.job/rank-2.g1", "node-1.job/rank-3.g1"]
        assert memory_group(job.warm_parent()) == memory_group(job.control()), "what is everybody's is charged to nobody"
        # An agent that is killed leaves its groups to the next one, and nothing to whoever comes after.
        old = job.agent("node-0")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: not is_alive(old) and job.agent("node-0") != old, what="another agent of node-0")
        os.kill(job.pid(3), signal.SIGKILL)
        eventually(lambda: len(job.starts()) >= 8, what="another generation")
        assert memory_group(job.pid(0)).endswith("node-0.job/rank-0.g2")
        eventually(lambda: not [path for path in groups_of(job) if (path / "rank-0.g1").exists()], what="the end of the groups of the first generation")
        job.process.send_signal(signal.SIGINT)
        assert job.wait() == 130
    assert not groups_of(job)


@pytest.mark.root
@pytest.mark.skipif(VERSION != 1, reason="needs control groups of version 1: with 2 whoever made the group a job runs in removes it with all below")
def test_when_all_are_killed_at_once_the_next_run_of_the_job_sweeps_up(state: Path, beside: Callable[..., Job]) -> None:
    with beside(state, options=["--memory", "1GB", "--cpus", 1, "--max-processes", 500], arguments=["--steps", 200]) as job:
        job.wait_for_step(5)
        pids = [job.control(), job.agent(), job.warm_parent(), job.pid(0)]
        for pid in (job.process.pid, *pids):
            os.kill(pid, signal.SIGSTOP)  # So that nobody has time to clean up after the others.
        for pid in (job.process.pid, *pids):
            os.kill(pid, signal.SIGKILL)
        job.wait()
        eventually(lambda: not any(is_alive(pid) for pid in pids), what="the end of all of them")
    assert len({path.parent for path in groups_of(job)}) == 3, "one for memory, one for cores and one for processes"
    with beside(state, arguments=["--steps", 200]) as job:
        job.finished()
    assert not groups_of(job)


@pytest.mark.root
@needs_groups
def test_a_job_that_starts_too_many_threads_is_refused_them_and_told_why(state: Path, beside: Callable[..., Job]) -> None:
    with greedy(beside, state, "processes", ["--max-processes", 40]) as job:
        assert job.wait() == 1, job.said()
    (diagnosis,) = job.incidents()[0].diagnoses
    assert "can't start new thread" in diagnosis.because
    assert "refused at the limit of 40 processes and threads of the job on this node (--max-processes)" in diagnosis.because


@pytest.mark.root
@needs_groups
def test_a_job_gets_no_more_time_of_the_cores_than_it_may(state: Path, beside: Callable[..., Job]) -> None:
    with greedy(beside, state, "cores", ["--cpus", 0.2]) as job:
        job.finished()
    assert float((job.kept / "share").read_text()) < 0.5, "alone it would have had all of one"


@pytest.mark.root
def test_what_a_private_job_leaves_in_its_places_is_seen_by_nobody_and_goes_with_it(state: Path, beside: Callable[..., Job]) -> None:
    with greedy(beside, state, "places", ["--private"]) as job:
        job.finished()
    temporary, shared = (job.kept / "places").read_text().splitlines()
    own = job.directory.node_temporary("node-0")
    assert Path(temporary).parent == own
    assert shared == f"['greedy-was-here', '{own.name}']"
    assert not Path("/dev/shm/greedy-was-here").exists()
    assert not own.exists()


@pytest.mark.unprivileged
@pytest.mark.skipif(os.getuid() == 0, reason="root may make control groups")
def test_without_control_groups_each_process_has_a_limit_and_what_is_lost_is_said_once(state: Path, beside: Callable[..., Job]) -> None:
    with greedy(beside, state, "memory", ["--nproc", 2, "--memory", "600MB", "--cpus", 1, "--private"]) as job:
        assert job.wait() == 1, job.said()
    shown = json.loads(command("show", "greedy", "--json", HOLDFAST_STATE=str(state)).stdout)
    node = shown["nodes"]["node-0"]
    if node["isolation"].startswith("cgroup"):
        pytest.skip("this user may make control groups here")
    assert node["isolation"] == "limits of processes"
    assert "--memory for each process alone (RLIMIT_DATA), not for all of them together; --cpus not at all; --private for temporary files" in node["unkept"]
    assert job.stderr.read_text().count("not all that was asked for is kept") == 1
    assert "rank 1 ran out of memory: it could not have more than 600 MB for each process (--memory, kept by RLIMIT_DATA)" in shown["because"]
    assert not job.directory.node_temporary("node-0").exists()
