"""Control groups: found in every layout, read in both versions, and with real limits where they can be set."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from observe.seeing import events, eventually, machine, may_make_groups, values

from holdfast.observe.cgroup import Cgroups, Place, find
from holdfast.observe.kernel_log import KernelLog
from holdfast.observe.watched import Watched


def mounted(kind: str, at: Path, root: str = "/", controllers: str = "memory") -> str:
    return f"31 23 0:28 {root} {at} rw,relatime shared:9 - {kind} {kind} rw{',' + controllers if kind == 'cgroup' else ''}\n"


def watching(pid: int, rank: int = 0) -> Watched:
    watched = Watched()
    watched.add(rank, pid)
    return watched


def test_version_2_alone_holds_memory_and_cores_in_one_place(tmp_path: Path) -> None:
    (tmp_path / "fs" / "job").mkdir(parents=True)
    proc = machine(tmp_path / "proc", self__mountinfo=mounted("cgroup2", tmp_path / "fs"), **{"7__cgroup": "0::/job\n"})
    place = Place(2, tmp_path / "fs" / "job", tmp_path / "fs")
    assert find(7, proc) == {"memory": place, "cpu": place}
    assert place.upwards() == [tmp_path / "fs" / "job", tmp_path / "fs"]


def test_where_both_versions_are_mounted_each_controller_is_found_where_it_is(tmp_path: Path) -> None:
    for name in ("memory", "cpu", "unified"):
        (tmp_path / name / "job").mkdir(parents=True)
    mounts = mounted("cgroup", tmp_path / "memory") + mounted("cgroup", tmp_path / "cpu", controllers="cpu,cpuacct") + mounted("cgroup2", tmp_path / "unified")
    proc = machine(tmp_path / "proc", self__mountinfo=mounts, **{"7__cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/job\n"})
    assert find(7, proc) == {"memory": Place(1, tmp_path / "memory" / "job", tmp_path / "memory"), "cpu": Place(1, tmp_path / "cpu" / "job", tmp_path / "cpu")}


def test_in_a_container_the_hosts_path_leads_to_the_group_that_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "fs" / "inner").mkdir(parents=True)
    proc = machine(tmp_path / "proc", self__mountinfo=mounted("cgroup", tmp_path / "fs", root="/docker/abc"), **{"7__cgroup": "4:memory:/docker/abc/inner\n"})
    assert find(7, proc)["memory"].directory == tmp_path / "fs" / "inner"


@pytest.mark.parametrize("line", ["0::/../elsewhere", "0::/not-there", "garbage", ""])
def test_a_group_out_of_sight_is_absent(line: str, tmp_path: Path) -> None:
    (tmp_path / "fs").mkdir()
    proc = machine(tmp_path / "proc", self__mountinfo=mounted("cgroup2", tmp_path / "fs"), **{"7__cgroup": line + "\n"})
    assert find(7, proc) == {}
    assert Cgroups(watching(7), proc).look() == []


def test_version_2_is_read_with_its_own_units_and_the_smallest_limit_above(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "pod" / "rank"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text("5000\n")
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 2\noom_kill 1\noom_group_kill 0\n")
    (group / "cpu.stat").write_text("usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n")
    proc = machine(tmp_path / "proc", self__mountinfo=mounted("cgroup2", tmp_path / "fs"), **{"7__cgroup": "0::/pod/rank\n", "8__cgroup": "0::/pod/rank\n"})
    watched = watching(7)
    watched.add(5, 8)
    seen = Cgroups(watched, proc).look()
    wanted = {"cgroup_memory_bytes": 1000, "cgroup_memory_limit_bytes": 5000, "cgroup_throttled_seconds_total": 2.5, "cgroup_oom_kills_total": 1}
    assert values(seen, "0") == wanted
    assert values(seen, "5") == wanted, "ranks in one group are told the same"


def test_a_group_without_a_limit_has_no_limit_to_say(tmp_path: Path) -> None:
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs" / "memory.usage_in_bytes").write_text("7\n")
    (tmp_path / "fs" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    proc = machine(tmp_path / "proc", self__mountinfo=mounted("cgroup", tmp_path / "fs"), **{"7__cgroup": "4:memory:/\n"})
    assert values(Cgroups(watching(7), proc).look(), "0") == {"cgroup_memory_bytes": 7}


def test_a_worker_in_a_group_of_its_own_is_held_back_by_those_above_it_too(tmp_path: Path) -> None:
    for path, throttled in (("fs", 0), ("fs/pod", 1_000_000), ("fs/pod/rank", 500_000)):
        (tmp_path / path).mkdir()
        (tmp_path / path / "cpu.stat").write_text(f"usage_usec 1\nthrottled_usec {throttled}\n")
    proc = machine(tmp_path / "proc", self__mountinfo=mounted("cgroup2", tmp_path / "fs"), **{"7__cgroup": "0::/pod/rank\n"})
    assert values(Cgroups(watching(7), proc).look(), "0") == {"cgroup_throttled_seconds_total": 1.5}


@contextlib.contextmanager
def group(controller: str, **settings: object) -> Iterator[Path]:
    directory = Path("/sys/fs/cgroup") / controller / f"holdfast-test-{os.getpid()}"
    directory.mkdir()
    try:
        for name, value in settings.items():
            (directory / name.replace("__", ".")).write_text(str(value))
        yield directory
    finally:
        eventually(lambda: not (directory / "tasks").read_text(), what="an empty control group")
        directory.rmdir()


def started_in(directory: Path, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"open({str(directory / 'tasks')!r}, 'w').write('0')\nprint(flush=True)\n{code}"], stdout=subprocess.PIPE)


@pytest.mark.root
@pytest.mark.skipif(not may_make_groups("memory"), reason="needs a writable control group of version 1 for memory")
def test_a_worker_killed_at_a_real_limit_is_counted_and_the_kernels_words_name_it() -> None:
    log = KernelLog()
    readable = bool(log.look())
    with group("memory", memory__limit_in_bytes=64 * 2**20) as directory:
        waiting = started_in(directory, "import time\ntime.sleep(600)")
        greedy = started_in(directory, "x = bytearray(512 * 2**20)")
        try:
            for process in (waiting, greedy):
                assert process.stdout is not None
                process.stdout.readline()
            cgroups = Cgroups(watching(waiting.pid, rank=3))
            seen = values(cgroups.look(), "3")
            assert seen["cgroup_memory_limit_bytes"] == 64 * 2**20
            assert 0 < seen["cgroup_memory_bytes"] <= 64 * 2**20
            # The kernel picks the largest.
            assert greedy.wait(60) == -9
            assert values(cgroups.look(), "3")["cgroup_oom_kills_total"] == 1
        finally:
            for process in (waiting, greedy):
                process.kill()
                process.communicate()
    if not readable:
        pytest.skip("the kernel log may not be read here; all else was as wanted")
    found = eventually(lambda: [event for event in events(log.look(), "oom_kill") if event.pid in (greedy.pid, None)], what="the kernel's line")
    assert "out of memory" in found[0].message.lower()


@pytest.mark.root
@pytest.mark.skipif(not may_make_groups("cpu"), reason="needs a writable control group of version 1 for cores")
def test_a_worker_held_back_by_a_real_quota_is_seen_to_be() -> None:
    with group("cpu", cpu__cfs_quota_us=10_000) as directory:
        process = started_in(directory, "while True: pass")
        try:
            cgroups = Cgroups(watching(process.pid), monotonic=iter_clock())
            eventually(lambda: values(cgroups.look(), "0").get("cgroup_throttled_seconds_total", 0) > 0.2, what="0.2 s of being held back")
        finally:
            process.kill()
            process.communicate()


def iter_clock() -> Callable[[], float]:
    """Every look is 10 s after the last one, so that a process that moves into its group is found there at once."""
    began = time.monotonic()
    ticks = iter(range(10**6))
    return lambda: began + 10.0 * next(ticks)
