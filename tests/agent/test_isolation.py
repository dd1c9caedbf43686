"""Isolation: what is asked of the kernel, in both versions of its control groups, and what is left without them. Real limits: end_to_end/test_isolation.py."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from agent.fake_groups import FakeGroups, processes
from hypothesis import given
from hypothesis import strategies as st
from observe.seeing import eventually, machine, may_make_groups

from holdfast.agent.exits import Evidence, MemoryKills, classify, read_memory_kills, read_memory_kills_again
from holdfast.agent.isolation.isolate import Isolation, isolate, member_of
from holdfast.agent.isolation.rlimits import ProcessLimits, kept_by_processes, nice_of
from holdfast.agent.isolation.v1 import Version1, raised
from holdfast.domain.exit import ExitKind
from holdfast.domain.fitting import Fitting
from holdfast.domain.job import JobSpec
from holdfast.domain.node import NodeSpec
from holdfast.domain.resources import Resources, size
from holdfast.launch.groups import OWN, Files, homes
from holdfast.observe.cgroup import Place

pytestmark = pytest.mark.unprivileged

GIB = 1 << 30
ALL = Resources(memory_bytes=8 * GIB, memory_high_bytes=7 * GIB, worker_memory_bytes=3 * GIB, cpus=1.5, cpu_weight=50, processes=64)
NAME = "holdfast-0-abc-node-1.train"


def node(resources: Resources, *, gpus: tuple[int, ...] = ()) -> NodeSpec:
    job = JobSpec(job="train", argv=("train.py",), resources=resources)
    return NodeSpec(
        node="node-1", host="", control="", state="", scratch="", shared_memory="/dev/shm/holdfast-0-abc-node-1", logs="", checkpoints="", interpreter="",
        job=job, gpus=gpus,
    )  # fmt: skip


class Machine:
    """One with control groups of version 2 alone, seen by a process in the group `/scope`."""

    def __init__(self, directory: Path, *, group: str = "scope", inside: tuple[int, ...] = (), controllers: str = "cpu memory pids") -> None:
        self.kernel = FakeGroups(directory / "fs", controllers)
        for controller in controllers.split():
            self.kernel.write(directory / "fs" / "cgroup.subtree_control", f"+{controller}")
        self.home = directory / "fs" / "scope"
        self.kernel.make(self.home)
        for pid in inside:
            self.kernel.put(pid, self.home)
        mount = f"31 23 0:28 / {directory / 'fs'} rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
        self.proc = machine(directory / "proc", self__mountinfo=mount, self__cgroup=f"0::/{group}\n")

    def isolated(self, resources: Resources) -> Isolation:
        return isolate(node(resources), proc=self.proc, files=self.kernel)


def said(file: Path) -> str:
    return file.read_text().strip()


# Version 2.


def test_version_2_limits_the_job_above_and_each_worker_below(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    isolation = there.isolated(ALL)
    assert (isolation.name, isolation.unkept) == ("cgroup v2", "")
    order = isolation.enter(member_of(7, 3))
    job = there.home / NAME
    assert order["groups"] == [str(job / "rank-3.g7" / "cgroup.procs")]
    wanted = {
        "memory.max": str(8 * GIB), "memory.high": str(7 * GIB), "memory.swap.max": "0", "cpu.max": "150000 100000", "cpu.weight": "50", "pids.max": "64",
    }  # fmt: skip
    assert {name: said(job / name) for name in wanted} == wanted
    assert said(job / "rank-3.g7" / "memory.max") == str(3 * GIB)
    assert (order["data_bytes"], order["nice"]) == (None, 0), "no limit is set twice"


def test_version_2_without_limits_still_has_a_group_for_each_worker(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    isolation = there.isolated(Resources())
    (file,) = isolation.enter(member_of(1, 0))["groups"]  # type: ignore[misc]
    assert said(Path(file).with_name("memory.max")) == "max"
    assert not (there.home / NAME / "cpu.max").exists(), "what is not needed is not handed down"


def test_version_2_steps_aside_when_only_its_own_processes_are_in_the_way(tmp_path: Path) -> None:
    there = Machine(tmp_path, inside=(os.getpid(), os.getppid()))
    isolation = there.isolated(ALL)
    assert isolation.unkept == ""
    assert not processes(there.home)
    assert sorted(processes(there.home / OWN)) == sorted([os.getpid(), os.getppid()])


def test_an_agent_that_is_started_again_beside_its_own_finds_the_same_home(tmp_path: Path) -> None:
    there = Machine(tmp_path, inside=(os.getpid(),))
    before = there.isolated(ALL).enter("rank-0.g1")
    there.proc = machine(tmp_path / "proc2", self__mountinfo=(there.proc / "self/mountinfo").read_text(), self__cgroup=f"0::/scope/{OWN}\n")
    assert there.isolated(ALL).enter("rank-0.g1") == before


def test_version_2_does_not_move_processes_of_others_and_says_what_to_do(tmp_path: Path) -> None:
    there = Machine(tmp_path, inside=(os.getpid(), 1))
    isolation = there.isolated(ALL)
    assert processes(there.home) == [os.getpid(), 1]
    assert sorted(path.name for path in there.home.iterdir() if path.is_dir()) == []
    assert isolation.name == "limits of processes"
    assert "processes of others are in it (1)" in isolation.unkept
    assert "systemd-run --user --scope -p Delegate=yes holdfast run" in isolation.unkept
    assert isolation.enter("rank-0.g1") == {"groups": [], "data_bytes": 3 * GIB, "nice": 3}


def test_a_scope_that_was_not_handed_over_degrades_with_the_kernels_reason(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    there.kernel.read_only.add(there.home)
    isolation = there.isolated(Resources(cpus=1))
    assert isolation.name == "nothing"
    assert f"{there.home / 'cgroup.subtree_control'}: Permission denied" in isolation.unkept
    assert there.isolated(Resources()).unkept == "", "who asked for nothing is told nothing"


def test_a_controller_that_is_not_there_costs_only_what_it_would_keep(tmp_path: Path) -> None:
    there = Machine(tmp_path, controllers="memory")
    isolation = there.isolated(Resources(memory_bytes=GIB, processes=64))
    assert isolation.name == "cgroup v2"
    assert said(there.home / NAME / "memory.max") == str(GIB)
    assert "--max-processes not at all" in isolation.unkept
    assert "--memory" not in isolation.unkept


def test_groups_of_a_generation_go_with_it_and_all_go_at_the_end(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    isolation = there.isolated(ALL)
    for generation in (7, 8):
        isolation.enter(member_of(generation, -1))
        isolation.enter(member_of(generation, 3))
    isolation.leave(7)
    assert sorted(path.name for path in (there.home / NAME).iterdir() if path.is_dir()) == ["rank-3.g8", "store.g8"]
    there.kernel.put(4711, there.home / NAME / "rank-3.g8")
    isolation.leave(8)
    assert (there.home / NAME / "rank-3.g8").is_dir(), "nobody is put out of a group"
    (there.home / NAME / "rank-3.g8" / "cgroup.procs").write_text("")
    isolation.close()
    assert not (there.home / NAME).exists()


def test_version_2_names_the_limit_that_was_met_and_the_worker_that_met_it(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    isolation = there.isolated(ALL)
    before = {}
    for rank in (3, 4):
        isolation.enter(member_of(7, rank))
        before[rank] = read_memory_kills(isolation.counted(member_of(7, rank)))
    (there.home / NAME / "memory.events.local").write_text("oom 1\noom_kill 0\n")
    (there.home / NAME / "rank-4.g7" / "memory.events").write_text("oom 0\noom_kill 1\n")
    assert judged(3, before[3]).kind is ExitKind.SIGNAL, "a kill of another worker is not its own"
    exit = judged(4, before[4])
    assert exit.because == "rank 4 ran out of memory: the kernel killed it at the limit of 8 GiB for the job on this node (--memory)"
    (there.home / NAME / "rank-4.g7" / "memory.events.local").write_text("oom 1\noom_kill 1\n")
    assert "at the limit of 3 GiB for each worker (--memory-per-worker)" in judged(4, before[4]).because


def test_a_kill_while_no_agent_was_there_is_counted_all_the_same(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    there.isolated(ALL).enter(member_of(7, 4))
    (there.home / NAME / "rank-4.g7" / "memory.events").write_text("oom 0\noom_kill 1\n")
    (there.home / NAME / "rank-4.g7" / "memory.events.local").write_text("oom 1\noom_kill 1\n")
    after_the_fact = read_memory_kills(there.isolated(ALL).counted(member_of(7, 4)))
    assert "at the limit of 3 GiB for each worker" in judged(4, after_the_fact).because


GROWS = Resources(memory_bytes=8 * GIB, memory_max_bytes=24 * GIB)


def test_version_2_gives_more_when_it_is_told_to_and_an_agent_that_comes_after_takes_nothing_back(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    isolation = there.isolated(GROWS)
    limit = there.home / NAME / "memory.max"
    assert said(limit) == str(8 * GIB)
    isolation.allow(Fitting(memory_bytes=16 * GIB).resources(GROWS))
    assert said(limit) == str(16 * GIB)
    isolation.enter(member_of(7, 4))
    again = there.isolated(GROWS)
    assert said(limit) == str(16 * GIB), "ranks live there: less would end them"
    before = read_memory_kills(again.counted(member_of(7, 4)))
    (there.home / NAME / "rank-4.g7" / "memory.events").write_text("oom 0\noom_kill 1\n")
    (there.home / NAME / "memory.events.local").write_text("oom 1\noom_kill 1\n")
    exit = judged(4, before)
    assert exit.limit == "--memory"
    assert exit.because.endswith("the kernel killed it at the limit of 16 GiB for the job on this node (--memory)")
    again.allow(Fitting().resources(GROWS))
    assert said(limit) == str(8 * GIB), "another script, say"
    assert Fitting(memory_bytes=99 * GIB).resources(GROWS).memory_bytes == 24 * GIB
    assert Fitting(memory_bytes=99 * GIB).resources(ALL) == ALL, "asked for anew without leave to give more"


def test_a_refused_process_is_told_with_the_limit(tmp_path: Path) -> None:
    there = Machine(tmp_path)
    isolation = there.isolated(ALL)
    isolation.enter(member_of(7, 4))
    before = read_memory_kills(isolation.counted(member_of(7, 4)))
    (there.home / NAME / "pids.events").write_text("max 2\n")
    exit = classify(Evidence(rank=4, pid=1, code=1, tail="", kills_before=before, kills_after=read_memory_kills_again(before)))
    assert exit.because.endswith("a process or thread was refused at the limit of 64 processes and threads of the job on this node (--max-processes)")


def judged(rank: int, before: MemoryKills):  # type: ignore[no-untyped-def]
    return classify(Evidence(rank=rank, pid=1, signal=9, kills_before=before, kills_after=read_memory_kills_again(before)))


# Version 1.


def test_version_1_writes_each_limit_where_its_controller_is(tmp_path: Path) -> None:
    written: dict[str, str] = {}

    class Written(Files):
        def write(self, file: Path, text: str) -> None:
            written[str(file.relative_to(tmp_path))] = text

    places = {}
    for controller in ("memory", "cpu", "pids", "devices"):
        (tmp_path / controller).mkdir()
        places[controller] = Place(1, tmp_path / controller, tmp_path / controller)
    groups = Version1(places, "job", ALL, hidden_gpus=(2, 3), files=Written())
    entered = groups.make("rank-0.g1")
    assert [str(Path(file).relative_to(tmp_path)) for file in entered] == [
        "memory/job/rank-0.g1/tasks", "cpu/job/tasks", "pids/job/tasks", "devices/job/tasks",
    ]  # fmt: skip
    assert written == {
        "memory/job/memory.use_hierarchy": "1", "memory/job/memory.limit_in_bytes": str(8 * GIB), "memory/job/memory.memsw.limit_in_bytes": str(8 * GIB),
        "memory/job/memory.soft_limit_in_bytes": str(7 * GIB), "memory/job/rank-0.g1/memory.limit_in_bytes": str(3 * GIB),
        "memory/job/rank-0.g1/memory.memsw.limit_in_bytes": str(3 * GIB), "cpu/job/cpu.cfs_period_us": "100000", "cpu/job/cpu.cfs_quota_us": "150000",
        "cpu/job/cpu.shares": "512", "pids/job/pids.max": "64", "devices/job/devices.deny": "c 195:3 rwm",
    }  # fmt: skip


def test_a_group_of_version_1_that_has_no_limit_yet_gives_no_more_than_was_asked_for(tmp_path: Path) -> None:
    """An agent that died between making it and limiting it left it so; the kernel says a number of its own for it."""
    (tmp_path / "job").mkdir()
    limit = tmp_path / "job" / "memory.limit_in_bytes"
    for there, wanted in ((str(2**63 - 4096), 8), (str(16 * GIB), 16)):
        limit.write_text(there)
        assert raised(GROWS, limit).memory_bytes == wanted * GIB


@pytest.mark.root
@pytest.mark.skipif(not may_make_groups("memory"), reason="needs a writable control group of version 1 for memory")
def test_a_real_group_of_version_1_is_made_below_our_own_and_removed_again() -> None:
    isolation = isolate(node(Resources(worker_memory_bytes=GIB)))
    home = homes(controllers=["memory"])["memory"].directory
    try:
        (file,) = isolation.enter("rank-0.g1")["groups"]  # type: ignore[misc]
        assert Path(file).parent == home / NAME / "rank-0.g1"
        assert said(Path(file).with_name("memory.limit_in_bytes")) == str(GIB)
        assert isolation.name == "cgroup v1"
        for memory_bytes in (8 * GIB, 16 * GIB, 4 * GIB):
            isolation.allow(Resources(memory_bytes=memory_bytes))
            for limit in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
                assert not (home / NAME / limit).exists() or said(home / NAME / limit) == str(memory_bytes)
    finally:
        isolation.close()
    assert not (home / NAME).exists()


@pytest.mark.root
@pytest.mark.skipif(not may_make_groups("devices"), reason="needs a writable control group of version 1 for devices")
def test_a_gpu_of_others_is_denied_by_the_kernel_and_not_only_hidden(tmp_path: Path) -> None:
    for gpu in (2, 3):
        try:
            os.mknod(tmp_path / f"nvidia{gpu}", stat.S_IFCHR | 0o666, os.makedev(195, gpu))
        except OSError as error:
            pytest.skip(f"no device can be made here: {error}")
    groups = Version1(homes(), f"holdfast-test-{os.getpid()}.job", Resources(), hidden_gpus=(3,), files=Files())
    look = "import errno, sys\nfor path in sys.argv[1:]:\n    try: open(path)\n    except OSError as error: print(errno.errorcode[error.errno])"
    enter = "".join(f"open({file!r}, 'w').write('0')\n" for file in groups.make("rank-0.g1"))
    try:
        said = subprocess.run([sys.executable, "-c", enter + look, *(tmp_path / f"nvidia{gpu}" for gpu in (2, 3))], capture_output=True, text=True, check=True)
    finally:
        eventually(groups.close, what="the end of the groups")
    # Without a driver, what is permitted is not there.
    assert said.stdout.split()[1:] == ["EPERM"]
    assert said.stdout.split()[0] != "EPERM"


# Without groups.


def test_without_groups_every_option_is_accounted_for() -> None:
    limits, lost = kept_by_processes(ALL, {"memory", "cpu", "pids"})
    assert limits == ProcessLimits(data_bytes=3 * GIB, nice=3, words="3 GiB for each process (--memory-per-worker, kept by RLIMIT_DATA)")
    for option in ("--memory", "--memory-per-worker", "--memory-high", "--cpus", "--cpu-weight", "--max-processes"):
        assert option in " ".join(lost)
    assert kept_by_processes(ALL, set()) == (ProcessLimits(), ())
    assert kept_by_processes(Resources(), {"memory", "cpu", "pids"}) == (ProcessLimits(), ())


@given(low=st.integers(1, 10_000), high=st.integers(1, 10_000))
def test_who_weighs_more_never_stands_further_back_and_nobody_is_moved_forward(low: int, high: int) -> None:
    low, high = sorted((low, high))
    assert 19 >= nice_of(low) >= nice_of(high) >= 0


def test_a_failed_allocation_is_memory_where_a_process_has_a_limit_and_an_exception_where_not() -> None:
    tail = "Traceback (most recent call last):\n  File \"/me/train.py\", line 3, in <module>\n    x = bytearray(n)\nMemoryError\n"
    exit = classify(Evidence(rank=1, pid=1, code=1, tail=tail, data_limit="3 GiB for each process (--memory, kept by RLIMIT_DATA)"))
    assert (exit.kind, exit.because) == (
        ExitKind.OUT_OF_MEMORY, "rank 1 ran out of memory: it could not have more than 3 GiB for each process (--memory, kept by RLIMIT_DATA)",
    )  # fmt: skip
    assert classify(Evidence(rank=1, pid=1, code=1, tail=tail)).kind is ExitKind.EXCEPTION


@given(st.integers(1, 1 << 50))
def test_a_size_is_said_about_as_large_as_it_is(number: int) -> None:
    amount, unit = size(number).split()
    scale = {"MB": 1e6, "GB": 1e9, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit]
    assert float(amount) * scale == pytest.approx(number, rel=1e-3)
