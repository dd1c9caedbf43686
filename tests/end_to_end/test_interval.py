"""How often to save, in real jobs: found out while they run, changed at the same step on all ranks, and known to the next generation."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from end_to_end.jobs import SCRIPTS, Job, command, eventually

from holdfast.checkpoint.layout import MANIFEST, parse_directory_name
from holdfast.control.journal import Journal
from holdfast.domain.effect import StartGang
from holdfast.domain.event import IntervalChosen
from holdfast.trainer.beginning import SAVE_EVERY

STEP_S = 0.02


def paced(state: Path, steps: int, *options: str) -> Job:
    where = ["--nproc", 1, "--nodes", 2, *options]
    return Job(state, options=where, script=SCRIPTS / "paced.py", arguments=[state / "kept-job", steps, STEP_S], torch=True)


def chosen(job: Job) -> IntervalChosen:
    """In force on all ranks."""

    job.wait_for_step(1)

    def look() -> IntervalChosen | None:
        interval = job.state().interval
        return interval if interval is not None and job.step() > interval.from_step else None

    return eventually(look, what="a choice in force")


def kill_one(job: Job) -> None:
    os.kill(job.pid(1), signal.SIGKILL)
    eventually(lambda: job.state().generation == 2 and job.state().phase == "running" and job.state().step > 0, what="a second generation")


def entries(job: Job) -> list[tuple[object, tuple[object, ...]]]:
    journal = Journal(job.directory.journal, read_only=True)
    try:
        return [(entry.event, entry.effects) for entry in journal.entries()]
    finally:
        journal.close()


def due(job: Job, generation: int) -> list[int]:
    """The steps that a generation had to save, by what the journal says it was told."""
    starts = {effect.save_every for _, effects in entries(job) for effect in effects if isinstance(effect, StartGang) and effect.generation == generation}
    (first,) = starts
    changes = [event for event, _ in entries(job) if isinstance(event, IntervalChosen) and event.generation == generation and event.automatic]
    told = [(0, first or SAVE_EVERY), *((one.from_step, one.every) for one in changes)]
    return [step for step in range(1, 10_000) if step % [every for from_step, every in told if from_step <= step][-1] == 0]


def saved(job: Job, generation: int) -> dict[int, bool]:
    """The steps that some rank saved, and whether all did."""
    found = {parse_directory_name(path.name): (path / MANIFEST).exists() for path in job.directory.checkpoints.iterdir()}
    return {name[0]: whole for name, whole in sorted(found.items()) if name is not None and name[1] == generation}


def all_saved_the_same(job: Job, *, ended_at: int) -> None:
    """What the kill left, at the end of the first generation, may be torn: a save under way, and the last step of the rank that lost its peer."""
    first, second = saved(job, 1), saved(job, 2)
    whole = [step for step, of_all in first.items() if of_all]
    assert whole == [step for step in due(job, 1) if step <= max(whole)]
    assert len(first) - len(whole) <= 2
    assert all(step > max(whole) for step, of_all in first.items() if not of_all)
    began = min(second)
    assert list(second) == sorted({*(step for step in due(job, 2) if began <= step <= ended_at), ended_at})
    assert all(second.values())


def test_a_time_becomes_steps_that_all_ranks_change_to_at_once_and_a_kill_does_not_lose_it(state: Path) -> None:
    with paced(state, 800, "--checkpoint-every", "500ms") as job:
        interval = chosen(job)
        assert 5 <= interval.every <= 25
        job.wait_for_step(interval.from_step + 3 * interval.every)
        kill_one(job)
        job.finished(120.0)
    assert SAVE_EVERY in saved(job, 1), "nothing was told before it was measured"
    assert len([step for step in saved(job, 1) if step >= interval.from_step]) >= 3
    assert len(saved(job, 2)) >= 3
    all_saved_the_same(job, ended_at=800)


@pytest.mark.slow
def test_an_interval_nobody_gave_is_found_out_shown_with_its_reasons_and_outlives_a_kill(state: Path) -> None:
    with paced(state, 1000) as job:
        interval = chosen(job)
        assert interval.automatic
        assert interval.every > SAVE_EVERY
        eventually(lambda: (view := job.view()) and view.saving is not None and all(rank.save_every == view.saving.every for rank in view.ranks))
        before = job.state().interval
        assert before is not None
        kill_one(job)
        job.finished(120.0)
    starts = [effect for _, effects in entries(job) for effect in effects if isinstance(effect, StartGang) and effect.generation == 2]
    assert [(start.save_every, start.save_asked) for start in starts] == [(before.every, False)] * 2
    all_saved_the_same(job, ended_at=1000)
    assert f"holdfast: saving every {interval.every:,} steps" in job.stderr.read_text()
    shown = json.loads(command("show", "job", "--json").stdout)["interval"]
    assert shown["because"] in " ".join(job.stderr.read_text().split())
    assert "a save costs" in shown["because"]
    assert "IntervalChosen saving every" in " ".join(command("replay", "job").stdout.split())
