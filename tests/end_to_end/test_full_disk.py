"""Disks that are really full: what is said, what is saved once there is room, and what the end says. The disks are small mounts, which need root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, command, eventually

from holdfast.checkpoint.found import newest_complete
from holdfast.diagnose.together import leading
from holdfast.domain.finding import Finding
from holdfast.domain.incident import Incident, IncidentPhase

pytestmark = pytest.mark.root
NEVER = 100_000


@contextmanager
def disk(path: Path, mb: int) -> Iterator[Path]:
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mb}m", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill(path: Path) -> Path:
    """Another program takes all that is left."""
    others = path / "others"
    with suppress(OSError), others.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    return others


def job(state: Path, *, steps: int, every: int, ranks: int = 1) -> Job:
    kept = state / "kept-job"
    return Job(state, options=["--nproc", ranks], script=SCRIPTS / "saves_much.py", arguments=[kept, steps, every], torch=True)


def story_of(run: Job, kind: str) -> tuple[Incident, Finding] | None:
    found = [(incident, leading(incident.findings)) for incident in run.incidents() if incident.findings]
    return next(((incident, first) for incident, first in found if first.kind == kind), None)


def known_story(run: Job, kind: str) -> tuple[Incident, Finding]:
    eventually(lambda: run.directory.journal.exists() and story_of(run, kind) is not None, what=f"an incident of {kind}")
    found = story_of(run, kind)
    assert found is not None
    return found


def test_a_disk_that_its_own_saves_fill_is_an_incident_and_the_end_says_which_steps_are_in_no_checkpoint(state: Path) -> None:
    with disk(state / "jobs" / "job" / "checkpoints", 14), job(state, steps=160, every=40) as run:
        ended = run.finished(120.0)
        (incident,) = ended.incidents
        first = leading(incident.findings)
        assert first.kind == "save_failed"
        assert "No space left on device: 2.8" in first.because, first.because
        assert "MB of 14.7 MB are free, and a save needs 5.92 MB; " in first.because
        assert "step 120 could not be saved" in first.because
        assert incident.phase is IncidentPhase.GAVE_UP, "what was not saved until the end is not resolved by it"
        assert "the newest checkpoint is step 80; steps 81 to 160 are in no checkpoint" in run.stderr.read_text().splitlines()[-1]
        assert "none of its buffers was free" not in run.stderr.read_text()
        shown = command("show", "job", "--state", state)
        assert "steps 81 to 160 are in no checkpoint" in " ".join(shown.stdout.split())


def test_what_a_full_disk_could_not_take_is_saved_once_there_is_room_and_the_incident_ends(state: Path) -> None:
    with disk(state / "jobs" / "job" / "checkpoints", 40) as checkpoints, job(state, steps=400, every=150) as run:
        run.wait_for_step(1)
        others = fill(checkpoints)
        _, first = known_story(run, "save_failed")
        assert "No space left on device: 0 B of 41.9 MB are free, and a save needs 5.9" in first.because, first.because
        others.unlink()
        eventually(lambda: newest_complete(checkpoints), what="the checkpoint that did not fit")
        assert run.step() < 300, "it was saved before the next save was due"
        eventually(lambda: any("saving works again: step 150 is saved, and nothing since 150 is lost" in line.what for line in run.incidents()[0].story))
        run.hurry()
        run.finished()
        assert "the newest checkpoint is step 400" in run.stderr.read_text().splitlines()[-1]


def test_a_save_that_will_not_fit_is_told_of_before_it_fails_and_control_outlives_its_own_full_disk(state: Path) -> None:
    small = state / "small"
    with disk(small, 40), job(small, steps=NEVER, every=NEVER) as run:
        run.wait_for_step(20)
        control = run.control()
        fill(small)
        _, first = known_story(run, "save_will_fail")
        assert "the next save will not fit" in first.because
        assert "0 B of 41.9 MB are free, and a save needs 5.9" in first.because, first.because
        assert run.control() == control, "control goes on with the journal's own pages"
        (small / "others").unlink()
        eventually(lambda: any("there is room for the next save" in line.what for line in run.incidents()[0].story), what="the end of it")
        os.kill(run.process.pid, 2)
        assert run.wait() == 130
