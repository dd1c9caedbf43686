"""Where faults are staged: a job of four ranks on two nodes, with disks, control groups, networks and a clock of its own that can be spoiled and mended.

Needs root. The machine's own disks, clock and network are not touched; at the end nothing is left.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.jobs import SCRIPTS, Job
from harness.measure import say
from harness.processes import TookTooLong, wait_until
from holdfast.launch.namespaces import INTERFACE

COMPUTE_S, PAUSE_S = 0.003, 0.04  # Of a core, and beside it: so light that several jobs have room on two cores.
AHEAD_STEPS = 8
SAVE_EVERY = 100  # As faults_inside.py has it.
MEMORY_BYTES = 3 << 30
DISK_BYTES = 384 << 20
OURS = ("RestartedOften", "GoodputLow", "IncidentOpenLong")  # What is right to say of a job that is broken on purpose every other minute, and no fault.
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(slots=True)
class Ground:
    job: Job
    scratch: Path
    disk: Path  # Where checkpoints go.
    device: str  # That disk's, as "major:minor".
    groups: Groups
    orders: int = 0
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    # Who is where.

    def pid(self, rank: int) -> int:
        return self.job.steps.newest_pids()[rank]

    def node(self, rank: int) -> str:
        state = self.job.state()
        assert state is not None
        assert state.gang is not None
        return state.gang.nodes[rank // self.job.ranks_per_node]

    # Inside the training script.

    def order(self, who: str, how: str, **more: float) -> None:
        self.orders += 1
        if who == "all":  # A little ahead, so that all have read it by then.
            more["from_step"] = self.job.steps.newest_step() + AHEAD_STEPS
        path = self.job.scratch / f"do-{who}"
        path.with_suffix(".new").write_text(json.dumps({"id": f"{self.orders}-{time.time()}", "how": how, **more}))
        path.with_suffix(".new").replace(path)

    def restore(self) -> None:
        """What all ranks were before the last order to them; until that is saved."""
        self.order("all", "restore")
        saved = self.job.steps.newest_step() + AHEAD_STEPS + 2 * SAVE_EVERY
        with suppress(TookTooLong):
            wait_until(lambda: self.job.steps.newest_step() >= saved, within_s=60.0, what="a save", every_s=0.5)

    # Cores.

    def hold_back(self, rank: int, share: float) -> None:
        """Let a rank have so much of the core it uses now."""
        pid = self.pid(rank)
        used = cpu_s(pid)
        time.sleep(5.0)
        usual = (cpu_s(pid) - used) / 5.0
        self.groups.hold_back(pid, share * usual)

    def let_go(self, rank: int) -> None:
        self.groups.let_go(self.pid(rank))

    # Disks.

    def fill(self) -> None:
        with (self.disk / "filler").open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                pass

    def empty(self) -> None:
        (self.disk / "filler").unlink(missing_ok=True)

    def writes_a_second(self, count: int) -> None:
        """So many of the job's writes reach the disk each second; 0: as many as it can."""
        self.groups.writes_a_second(self.device, count)

    # Networks.

    def in_network_of(self, rank: int, *command: str) -> list[str]:
        agent = self.job.agents()[self.node(rank)]
        return ["nsenter", "-t", str(agent.pid), "-n", *command]

    def lose_packets(self, rank: int, share: int) -> None:
        chain = "add table inet fault; add chain inet fault in { type filter hook input priority 0; }"
        some = f"numgen random mod 100 < {share} " if share < 100 else ""
        self._call(rank, "nft", f"{chain}; add rule inet fault in iif != lo {some}drop")

    def mend_network(self, rank: int) -> None:
        self._call(rank, "nft", "delete table inet fault")

    def narrow(self, rank: int, kbit: int) -> None:
        self._call(rank, "tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", f"{kbit}kbit", "burst", "8kb", "latency", "2s")

    def widen(self, rank: int) -> None:
        self._call(rank, "tc", "qdisc", "del", "dev", INTERFACE, "root")

    def delay(self, rank: int, milliseconds: int) -> None:
        line = [sys.executable, str(SCRIPTS / "delay_line.py"), INTERFACE, str(milliseconds)]
        started = subprocess.Popen(self.in_network_of(rank, *line), stdout=subprocess.PIPE)
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        self.running.append(started)

    def end_delay(self) -> None:
        while self.running:
            one = self.running.pop()
            one.send_signal(signal.SIGTERM)
            one.wait(10)

    def _call(self, rank: int, *command: str) -> None:
        subprocess.run(self.in_network_of(rank, *command), check=True, timeout=20, capture_output=True)

    # The clock.

    def shift_clock(self, rank: int, seconds: float) -> None:
        agent = self.job.agents()[self.node(rank)]
        set_shift(self.scratch / "clock", os.stat(f"/proc/{agent.pid}/ns/net").st_ino, seconds)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def set_shift(path: Path, network: int, seconds: float) -> None:
    with path.open("r+b") as file:
        file.write(struct.pack("Qd", network, seconds))


@contextmanager
def staged(scratch: Path) -> Iterator[Ground]:
    """A job whose checkpoints lie on a disk of its own, in control groups of its own, in networks of its own, with a clock that can be set."""
    with ExitStack() as stack:
        job_name, name = "faults", f"holdfast-faults-{os.getpid()}"
        disk = scratch / "state" / "jobs" / job_name / "checkpoints"
        device = stack.enter_context(disk_at(disk, scratch / "disk.img"))
        groups = stack.enter_context(control_groups(name))
        rules = scratch / "rules.yaml"
        rules.write_text("rules:\n" + "".join(f"  - {{name: {rule}, disabled: true}}\n" for rule in OURS))
        job = stack.enter_context(
            Job(
                scratch, job_name, "faults_inside.py", str(COMPUTE_S), str(PAUSE_S), nproc=2, nodes=2, options=["--own-network", "--rules", str(rules)],
                env={"OMP_NUM_THREADS": "1", **preloaded_clock(scratch)},
            )
        )  # fmt: skip
        if groups.version == 2:
            groups.enter("stage")  # Long before an agent makes groups where the job is.
        ground = Ground(job=job, scratch=scratch, disk=disk, device=device, groups=groups)
        stack.callback(ground.end_delay)
        yield ground


@contextmanager
def disk_at(place: Path, image: Path) -> Iterator[str]:
    place.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, timeout=60)
    made = subprocess.run(["losetup", "-f", "--show", str(image)], check=True, timeout=20, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount", made, str(place)], check=True, timeout=20)
        number = os.stat(made).st_rdev
        yield f"{os.major(number)}:{os.minor(number)}"
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, timeout=20)
        subprocess.run(["losetup", "-d", made], check=False, timeout=20)


class Groups:
    """Control groups of the stage: one for the job and what troubles it, with its memory, in either version.

    Under version 2 a group holds processes or groups. So the job is started in `job`, where Holdfast makes those of its workers, and we stay in `stage`.
    """

    def __init__(self, name: str) -> None:
        self.version = 2 if (_GROUPS / "cgroup.controllers").exists() else 1
        self._places = [_GROUPS / name] if self.version == 2 else [_GROUPS / controller / name for controller in ("memory", "cpu", "blkio")]
        self._came_from = Path(f"/proc/{os.getpid()}/cgroup").read_text()
        self._was: dict[int, Path] = {}

    def make(self) -> None:
        if self.version == 2:
            (_GROUPS / "cgroup.subtree_control").write_text("+memory +cpu +io +pids")
        for place in self._places:
            place.mkdir()
        if self.version == 1:
            (self._of("memory") / "memory.limit_in_bytes").write_text(str(MEMORY_BYTES))
            self.enter("")
            return
        (self._of("memory") / "memory.max").write_text(str(MEMORY_BYTES))
        (self._of("memory") / "cgroup.subtree_control").write_text("+memory +cpu +io +pids")
        for inner in ("job", "stage"):
            (self._of("memory") / inner).mkdir()
        self.enter("job")

    def enter(self, inner: str) -> None:
        for place in self._places:
            (place / inner / "cgroup.procs").write_text(str(os.getpid()))

    def hold_back(self, pid: int, cores: float) -> None:
        group = self._of("cpu") / "held_back"
        group.mkdir(exist_ok=True)
        self._was[pid] = self._group_of(pid)
        quota_us = max(1000, int(cores * 100_000))
        if self.version == 2:
            (group / "cpu.max").write_text(f"{quota_us} 100000")
        else:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cgroup.procs").write_text(str(pid))

    def let_go(self, pid: int) -> None:
        if pid in self._was:  # Else it is another process by now, which is where it belongs.
            (self._was.pop(pid) / "cgroup.procs").write_text(str(pid))

    def writes_a_second(self, device: str, count: int) -> None:
        if self.version == 2:
            (self._of("io") / "io.max").write_text(f"{device} wiops={count or 'max'}")
        else:
            (self._of("blkio") / "blkio.throttle.write_iops_device").write_text(f"{device} {count}")

    def remove(self) -> None:
        """We go back to where we came from, and nothing stays."""
        for line in self._came_from.splitlines():
            _, controllers, path = line.split(":", 2)
            top = next((_GROUPS / name for name in controllers.split(",") if name and (_GROUPS / name / "cgroup.procs").exists()), _GROUPS)
            if self.version == 1 and top == _GROUPS:
                continue
            (top / path.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        for place in self._places:
            for inner in [*sorted(place.rglob("*/"), reverse=True), place]:
                try:
                    inner.rmdir()
                except OSError as error:
                    say(f"{inner} stays: {error}")

    def _of(self, controller: str) -> Path:
        return self._places[0] if self.version == 2 else next(place for place in self._places if place.parent.name == controller)

    def _group_of(self, pid: int) -> Path:
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if self.version == 2 and not controllers:
                return _GROUPS / path.lstrip("/")
            if "cpu" in controllers.split(","):
                return _GROUPS / "cpu" / path.lstrip("/")
        raise RuntimeError(f"process {pid} is in no control group for its cores")


@contextmanager
def control_groups(name: str) -> Iterator[Groups]:
    """This process, and so all that it starts, in groups of its own."""
    groups = Groups(name)
    groups.make()
    try:
        yield groups
    finally:
        groups.remove()


def preloaded_clock(scratch: Path) -> dict[str, str]:
    library = scratch / "clock_shift.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SCRIPTS / "clock_shift.c"), "-ldl"], check=True, timeout=60)
    (scratch / "clock").write_bytes(bytes(16))
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(scratch / "clock")}
