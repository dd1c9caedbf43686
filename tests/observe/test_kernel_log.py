"""The kernel log: its lines, read for what they mean, from a device that may be forbidden, flooded or silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from observe.seeing import events, values

from holdfast.observe.kernel_log import KernelLog, read_line
from holdfast.observe.xid import Xids, short_pci

LINES = [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", "xid", {"pid": 1234, "code": 79, "pci": "0000:3b:00"}),
    ("NVRM: Xid (PCI:0000:C1:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008", "xid", {"pid": None, "code": 31, "pci": "0000:c1:00"}),
    ("NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error", "xid", {"pid": None, "code": 48}),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "gpu_off_bus", {"pci": "0000:3b:00"}),
    ("Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB", "oom_kill", {"pid": 4242}),
    ("Memory cgroup out of memory: Killed process 4243 (pt_main_thread) total-vm:1kB", "oom_kill", {"pid": 4243}),
    ("Out of memory: Kill process 17 (a) score 900 or sacrifice child", "oom_kill", {"pid": 17}),
    ("mce: [Hardware Error]: Machine check events logged", "machine_check", {}),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "machine_check", {}),
    ("EXT4-fs (nvme0n1p1): Remounting filesystem read-only", "filesystem_read_only", {}),
    ("XFS (dm-0): Filesystem has been shut down due to log error (0x2).", "filesystem_read_only", {"of": "dm-0"}),
    ("blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ)", "disk_io_error", {"of": "sda"}),
    ("Buffer I/O error on dev nvme1n1, logical block 7, async page read", "disk_io_error", {"of": "nvme1n1"}),
    ("nvme nvme0: I/O 12 QID 3 timeout, aborting", "disk_io_error", {"of": "nvme0"}),
    ("nfs: server storage-1 not responding, still trying", "nfs_not_responding", {"of": "storage-1"}),
    ("mlx5_core 0000:12:00.0 ens1f0np0: Link down", "link_down", {"of": "ens1f0np0"}),
    ("igb 0000:01:00.0 eth0: igb: eth0 NIC Link is Down", "link_down", {"of": "eth0"}),
    ("INFO: task python:991 blocked for more than 120 seconds.", "hung_task", {"pid": 991}),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1]", "lockup", {}),
    ("python[77]: segfault at 0 ip 00007f error 4 in libc.so", "segfault", {"pid": 77}),
]


@pytest.mark.parametrize(("line", "kind", "wanted"), LINES, ids=[line[:40] for line, _, _ in LINES])
def test_a_line_says_what_happened_and_to_whom(line: str, kind: str, wanted: dict[str, object]) -> None:
    event = read_line(line, at=5.0)
    assert event is not None
    assert event.kind == kind
    assert event.message == line
    assert {name: getattr(event, name) for name in wanted} == wanted


@pytest.mark.parametrize("line", [
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=4243,uid=0", "python invoked oom-killer: gfp_mask=0xcc0",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module", "eth0: Link is Up - 100Gbps/Full", "ata1: SATA link down (SStatus 0)", "nfs: server storage-1 OK", "",
])  # fmt: skip
def test_a_line_beside_the_matter_is_not_an_event_so_that_one_fault_is_not_two(line: str) -> None:
    assert read_line(line, at=5.0) is None


def test_both_ways_to_write_where_a_gpu_sits_are_one() -> None:
    assert short_pci("00000000:3B:00.0") == short_pci("0000:3b:00") == "0000:3b:00"
    assert short_pci("what") == "what"


@pytest.fixture
def device() -> Iterator[tuple[Path, int]]:
    """Like /dev/kmsg: each read gives one record. A pipe in packet mode does."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    yield Path(f"/proc/self/fd/{reader}"), writer
    os.close(writer)
    os.close(reader)


def test_errors_of_the_kernel_are_counted_and_what_programs_write_there_is_not(device: tuple[Path, int]) -> None:
    path, writer = device
    log = KernelLog(path=path)
    assert values(log.look()) == {"host_kernel_errors_total": 0}
    for record in (b"3,1,1000,-;an error\n", b"2,2,1000,-;worse\n", b"4,3,1000,-;a warning\n", b"27,4,1000,-;systemd[1]: Failed\n", b"nonsense\n"):
        os.write(writer, record)
    assert values(log.look()) == {"host_kernel_errors_total": 2}
    assert values(log.look()) == {"host_kernel_errors_total": 2}, "nothing new"


def test_an_event_has_the_time_it_was_logged_at(device: tuple[Path, int]) -> None:
    path, writer = device
    log = KernelLog(path=path, wall=lambda: 1_000_100.0, monotonic=lambda: 100.0)
    log.look()
    os.write(writer, b"6,1,90000000,-;nfs: server s not responding, timed out\n SUBSYSTEM=x\n")
    (event,) = events(log.look())
    assert (event.kind, event.at, event.message) == ("nfs_not_responding", 1_000_090.0, "nfs: server s not responding, timed out")


def test_a_flood_is_read_over_several_looks_and_none_of_it_is_lost(device: tuple[Path, int]) -> None:
    path, writer = device
    log = KernelLog(path=path)
    log.look()
    os.set_blocking(writer, False)
    written, seen = 0, 0.0
    while seen < 2500:
        try:
            while written < 2500:
                os.write(writer, b"3,1,1000,-;again\n")
                written += 1
        except BlockingIOError:
            pass
        seen = values(log.look())["host_kernel_errors_total"]
    assert written == 2500


@pytest.mark.unprivileged
def test_a_log_that_may_not_be_read_is_absent(tmp_path: Path) -> None:
    assert KernelLog(path=tmp_path / "missing").look() == []


def test_in_a_namespace_of_its_own_the_logs_numbers_are_not_taken_for_ours(device: tuple[Path, int], tmp_path: Path) -> None:
    path, writer = device
    log = KernelLog(path=path, proc=tmp_path)
    log.look()
    os.write(writer, b"3,1,1000,-;Out of memory: Killed process 1 (systemd)\n")
    assert [event.pid for event in events(log.look(), "oom_kill")] == [None]


def test_many_lines_about_one_xid_are_one(device: tuple[Path, int]) -> None:
    path, writer = device
    xids = Xids()
    xids.know("0000:3b:00", "2", "GPU-x")
    log = KernelLog(xids, path)
    log.look()
    for second in (1, 1, 2, 30):
        os.write(writer, b"3,1,%d,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=a, Graphics SM Warp Exception\n" % (second * 10**6))
    assert len(events(log.look(), "xid")) == 2
    assert values(xids.look(), "2") == {"gpu_xid_total": 2}
