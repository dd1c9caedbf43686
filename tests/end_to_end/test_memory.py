"""State that only memory has: what the disk could not take is not lost with a worker, nor with a whole node."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, eventually, lose_node

from holdfast.checkpoint.found import newest_complete
from holdfast.checkpoint.snapshot import peek
from holdfast.launch.layout import JobDirectory

DDP = SCRIPTS / "ddp.py"


def ddp(state: Path, name: str, *, step_s: float = 0.05, spares: int = 0) -> Job:
    options = ["--nproc", 1, "--nodes", 2, "--spares", spares]
    return Job(state, name, options=options, script=DDP, arguments=[state / f"kept-{name}", 300, step_s], torch=True)


def break_disk(directory: JobDirectory) -> int:
    """From here on nothing can be written or read where checkpoints are; the newest step that is there."""
    newest = eventually(lambda: newest_complete(directory.checkpoints), what="a first checkpoint")
    directory.checkpoints.rename(directory.path / "aside")
    directory.checkpoints.write_text("no directory any more")
    return newest.step


def mend_disk(directory: JobDirectory) -> None:
    directory.checkpoints.unlink()
    (directory.path / "aside").rename(directory.checkpoints)


def held_beyond(job: Job, step: int) -> int:
    """A step that is whole in memory and newer than `step`."""
    return eventually(lambda: (view := job.view()) and view.held_step > step and view.held_step, what=f"a step beyond {step} in memory")


def restored(job: Job) -> list[int]:
    return [int(step) for step in re.findall(r"step (\d+) is restored from memory", job.said())]


def weights(job: Job) -> set[str]:
    return {(job.kept / f"weights-{rank}").read_text() for rank in range(2)}


@pytest.fixture(scope="module")
def in_peace(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The weights of the same training when nothing happens to it."""
    with ddp(tmp_path_factory.mktemp("calm"), "calm", step_s=0.0) as calm:
        calm.finished(120.0)
    return weights(calm)


def test_a_killed_worker_goes_on_from_memory_when_the_disk_has_failed(state: Path, in_peace: set[str]) -> None:
    with ddp(state, "job") as job:
        job.wait_for_step(20)
        on_disk = break_disk(job.directory)
        step = held_beyond(job, on_disk + 20)
        os.kill(job.pid(1), signal.SIGKILL)
        eventually(lambda: restored(job), what="a restore from memory")
        assert restored(job)[0] >= step > on_disk
        mend_disk(job.directory)
        job.hurry()
        job.finished(120.0)
    assert weights(job) == in_peace


def test_a_lost_node_s_state_comes_from_the_memory_of_another(state: Path, in_peace: set[str]) -> None:
    with ddp(state, "job", spares=1) as job:
        job.wait_for_step(20)
        eventually(lambda: len([copy for number in range(3) for copy in copies_on(job, f"node-{number}")]) == 2, what="a copy of each rank")
        on_disk = break_disk(job.directory)
        eventually(lambda: copied_beyond(job, on_disk), what=f"copies beyond step {on_disk}")
        gang = job.state().gang
        assert gang is not None
        lose_node(job, gang.nodes[1])
        eventually(lambda: restored(job), what="a restore from memory")
        mend_disk(job.directory)
        job.hurry()
        job.finished(120.0)
    assert restored(job)[0] > on_disk
    assert weights(job) == in_peace


def copied_beyond(job: Job, step: int) -> bool:
    heads = [peek(path.with_suffix("")) for number in range(3) for path in copies_on(job, f"node-{number}")]
    return len(heads) == 2 and all(head is not None and head.seal.step > step for head in heads)


def copies_on(job: Job, node: str) -> list[Path]:
    return list(job.directory.node_shared_memory(node).glob("copy-*.index"))
