"""The host: what /proc holds is said, what it does not hold is absent, and nothing fails for want of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from observe.seeing import Hands, events, machine, values

from holdfast.observe.clock import Clock
from holdfast.observe.cpu import Cpu
from holdfast.observe.descriptors import Descriptors
from holdfast.observe.memory import Memory, left_for
from holdfast.observe.network import Network
from holdfast.observe.own import Own
from holdfast.observe.probe import Probe
from holdfast.observe.reread import Reread, number_after

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\nSwapTotal:       2048 kB\nSwapFree:        1024 kB\n"
PRESSURE = "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=2.50 avg60=0.00 avg300=0.00 total=1\n"


def test_the_share_of_busy_cores_is_what_was_not_idle_between_two_looks(tmp_path: Path) -> None:
    cpu = Cpu(machine(tmp_path, stat="cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n", loadavg="3.00 2.00 1.00 1/1 1\n"), cores=2)
    assert values(cpu.look()) == {"host_load": 1.5}, "one look cannot say how busy it was"
    machine(tmp_path, stat="cpu  130 0 130 810 30 0 0 0 0 0\ncpu0 1 1 1 1\n")
    assert values(cpu.look())["host_cpu_ratio"] == pytest.approx(0.6), "60 of 100 ticks were neither idle nor waiting for a disk"


def test_pressure_is_of_cores_for_some_and_of_memory_and_disks_for_all(tmp_path: Path) -> None:
    cpu = Cpu(machine(tmp_path, pressure__cpu=PRESSURE, pressure__memory=PRESSURE, pressure__io=PRESSURE))
    assert values(cpu.look()) == {"host_cpu_pressure_ratio": 0.125, "host_memory_pressure_ratio": 0.025, "host_io_pressure_ratio": 0.025}


def test_an_old_kernel_without_pressure_still_says_how_busy_it_is(tmp_path: Path) -> None:
    cpu = Cpu(machine(tmp_path, stat="cpu  1 0 1 8 0 0 0 0 0 0\n", loadavg="1.00 0 0 1/1 1\n"), cores=1)
    assert values(cpu.look()) == {"host_load": 1.0}


@pytest.mark.parametrize("kind", [Cpu, Memory, Descriptors, Network, Own])
def test_a_machine_that_shows_nothing_is_not_a_failure(kind: type[Probe], tmp_path: Path) -> None:
    arguments = {"proc": tmp_path, **({"sys": tmp_path} if kind is Network else {})}
    assert list(kind(**arguments).look()) == []  # type: ignore[call-arg]


def test_a_file_that_comes_later_is_seen_and_one_that_goes_is_absent_again(tmp_path: Path) -> None:
    file = Reread(tmp_path / "late")
    assert file.read() is None
    (tmp_path / "late").write_text("1")
    assert file.read() == b"1"
    (tmp_path / "late").write_text("2")
    assert file.read() == b"2", "it is read from its beginning each time"


def test_a_number_is_found_by_the_whole_word_before_it() -> None:
    text = b"oom_kill_disable 0\nunder_oom 1\noom_kill 7\n"
    assert (number_after(text, b"oom_kill "), number_after(text, b"under_oom "), number_after(text, b"kill "), number_after(None, b"x")) == (7, 1, None, None)
    assert number_after(b"oom_kill many\n", b"oom_kill ") is None


def test_memory_and_swap_are_in_bytes_and_kills_are_counted(tmp_path: Path) -> None:
    memory = Memory(machine(tmp_path, meminfo=MEMINFO, vmstat="pswpin 3\npswpout 4\noom_kill 5\n"))
    assert values(memory.look()) == {
        "host_memory_bytes": 16 * GIB, "host_memory_available_bytes": 8 * GIB, "host_swap_used_bytes": 2**20, "host_swapped_pages_total": 7,
        "host_oom_kills_total": 5,
    }  # fmt: skip


def test_without_swap_there_is_no_swap_in_use(tmp_path: Path) -> None:
    memory = Memory(machine(tmp_path, meminfo="MemTotal: 1024 kB\nMemAvailable: 512 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"))
    assert values(memory.look()) == {"host_memory_bytes": 2**20, "host_memory_available_bytes": 2**19}


def test_a_machine_with_nothing_left_is_not_one_that_says_nothing(tmp_path: Path) -> None:
    assert left_for(1, machine(tmp_path / "full", meminfo="MemTotal: 1024 kB\nMemAvailable: 0 kB\n")) == (0, 2**20)
    assert min(left_for(1, machine(tmp_path / "silent"))) > 2**60


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_what_can_be_had_is_the_lesser_of_its_limit_and_the_machine(version: int, tmp_path: Path) -> None:
    top = tmp_path / "sys"
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group = top / "pod" / "container"
    group.mkdir(parents=True)
    for directory, limit in ((top / "pod", 4 * GIB), (group, 6 * GIB)):
        (directory / names[0]).write_text(f"{limit}\n")
        (directory / names[1]).write_text(f"{3 * GIB}\n")
        cached = {"inactive_file": GIB // 2, "active_file": GIB, "file_mapped" if version == 2 else "mapped_file": GIB // 2}
        (directory / "memory.stat").write_text("anon 1\n" + "".join(f"{'' if version == 2 else 'total_'}{name} {size}\n" for name, size in cached.items()))
    line = "0::/pod/container" if version == 2 else "4:memory:/pod/container"
    mount = f"31 23 0:28 / {top} rw - {'cgroup2 cgroup2 rw' if version == 2 else 'cgroup cgroup rw,memory'}\n"
    memory = Memory(machine(tmp_path / "proc", meminfo=MEMINFO, self__cgroup=line + "\n", self__mountinfo=mount))
    found = values(memory.look())
    assert found["host_memory_bytes"] == 4 * GIB, "the group above has the smaller limit"
    assert found["host_memory_available_bytes"] == 2 * GIB, "4 GiB less 3 in use, of which 1 is a cache that nobody has mapped, given up first"


def test_open_files_are_a_share_of_the_limit(tmp_path: Path) -> None:
    machine(tmp_path, **{"sys__fs__file-nr": "300\t100\t1000\n"})
    assert values(Descriptors(tmp_path).look()) == {"host_file_descriptors_ratio": 0.2}


def test_a_jump_of_the_wall_clock_is_one_event_and_stays_long_enough_to_be_read() -> None:
    wall, monotonic = Hands(1_700_000_000.0), Hands()
    clock = Clock(wall, monotonic)
    assert clock.look() == [], "one look shows no movement"
    wall.now, monotonic.now = wall.now + 1, monotonic.now + 1
    assert values(clock.look()) == {"host_clock_offset_seconds": 0.0}
    wall.now, monotonic.now = wall.now + 1 - 30, monotonic.now + 1
    seen = clock.look()
    assert values(seen)["host_clock_offset_seconds"] == pytest.approx(-30)
    assert [event.message for event in events(seen, "clock_jump")] == ["the wall clock jumped 30.000 s backwards"]
    for said in (-30, -30, 0):
        wall.now, monotonic.now = wall.now + 1, monotonic.now + 1
        seen = clock.look()
        assert values(seen)["host_clock_offset_seconds"] == pytest.approx(said)
        assert not events(seen, "clock_jump")


def test_what_the_agent_costs_is_told_by_itself() -> None:
    monotonic, cpu_s = Hands(), Hands(5.0)
    own = Own(monotonic=monotonic, cpu_s=cpu_s)
    assert own.look()[0].metric == "agent_memory_bytes"
    monotonic.now, cpu_s.now = monotonic.now + 10, cpu_s.now + 0.05
    assert values(own.look())["agent_cpu_ratio"] == pytest.approx(0.005)


def test_this_machine_says_what_every_linux_has() -> None:
    seen = values([*Cpu().look(), *Memory().look(), *Network().look(), *Descriptors().look()])
    assert {"host_load", "host_memory_bytes", "host_memory_available_bytes", "host_segments_total", "host_retransmits_total"} <= seen.keys()
    assert 0 < seen["host_memory_available_bytes"] <= seen["host_memory_bytes"]
