"""Where faults are staged: a job of four ranks on two nodes, with disks, control groups, networks and a clock of its own that can be spoiled and mended.

Needs root. The machine's own disks, clock and network are not touched; at the end nothing is left.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.jobs import Job
from harness.measure import say
from harness.processes import TookTooLong, wait_until
from holdfast.chaos.clock import settable
from holdfast.chaos.ground import Ground
from holdfast.chaos.inside import AHEAD_STEPS, ALL, order
from holdfast.chaos.undo import Undoing
from holdfast.launch.layout import JobDirectory

COMPUTE_S, PAUSE_S = 0.003, 0.04  # Of a core, and beside it: so light that several jobs have room on two cores.
SAVE_EVERY = 100  # As faults_inside.py has it.
MEMORY_BYTES = 3 << 30
DISK_BYTES = 384 << 20
OURS = ("RestartedOften", "GoodputLow", "IncidentOpenLong")  # What is right to say of a job that is broken on purpose every other minute, and no fault.
_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Steps:
    """The job as its step logs and its journal show it: a scene for holdfast.chaos."""

    job: Job

    @property
    def directory(self) -> JobDirectory:
        return self.job.directory

    def pid(self, rank: int) -> int:
        return self.job.steps.newest_pids()[rank]

    def node(self, rank: int) -> str:
        state = self.job.state()
        assert state is not None
        assert state.gang is not None
        return state.gang.nodes[rank // self.job.ranks_per_node]

    def step(self) -> int:
        return self.job.steps.newest_step()


@dataclass(frozen=True, slots=True)
class Stage:
    job: Job
    ground: Ground

    def heal(self) -> None:
        for problem in self.ground.undoing.heal():
            say(f"could not be put right: {problem}")

    def restore(self) -> None:
        """What all ranks were before the last order to them; until that is saved."""
        order(self.ground, ALL, "restore")
        saved = self.job.steps.newest_step() + AHEAD_STEPS + 2 * SAVE_EVERY
        with suppress(TookTooLong):
            wait_until(lambda: self.job.steps.newest_step() >= saved, within_s=60.0, what="a save", every_s=0.5)


@contextmanager
def staged(scratch: Path) -> Iterator[Stage]:
    """A job whose checkpoints lie on a disk of its own, in control groups of its own, in networks of its own, with a clock that can be set."""
    with ExitStack() as stack:
        job_name, name = "faults", f"holdfast-faults-{os.getpid()}"
        disk = scratch / "state" / "jobs" / job_name / "checkpoints"
        stack.enter_context(disk_at(disk, scratch / "disk.img"))
        groups = stack.enter_context(control_groups(name))
        rules = scratch / "rules.yaml"
        rules.write_text("rules:\n" + "".join(f"  - {{name: {rule}, disabled: true}}\n" for rule in OURS))
        job = stack.enter_context(
            Job(
                scratch, job_name, "faults_inside.py", str(COMPUTE_S), str(PAUSE_S), nproc=2, nodes=2,
                options=["--own-network", "--rules", str(rules), "--never", "roll_back"],  # What is found is measured, and the script puts back what it ruined.
                env={"OMP_NUM_THREADS": "1", **settable(scratch)},
            )
        )  # fmt: skip
        if groups.version == 2:
            groups.enter("stage")  # Long before an agent makes groups where the job is.
        ground = Ground(scene=Steps(job), orders=job.scratch, undoing=Undoing(scratch / "undo"), group=name, clock=scratch / "clock")
        stage = Stage(job, ground)
        stack.callback(stage.heal)
        yield stage


@contextmanager
def disk_at(place: Path, image: Path) -> Iterator[None]:
    place.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, timeout=60)
    made = subprocess.run(["losetup", "-f", "--show", str(image)], check=True, timeout=20, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount", made, str(place)], check=True, timeout=20)
        yield
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


@contextmanager
def control_groups(name: str) -> Iterator[Groups]:
    """This process, and so all that it starts, in groups of its own."""
    groups = Groups(name)
    groups.make()
    try:
        yield groups
    finally:
        groups.remove()
