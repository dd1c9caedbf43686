"""Training goes wrong while everything runs: data, hardware, hyper-parameters, or nothing that helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from end_to_end.jobs import SCRIPTS, Job, command, eventually

from holdfast.checkpoint.found import list_complete
from holdfast.core.base import PERMANENT_CODE
from holdfast.domain.incident import IncidentPhase
from holdfast.domain.job import Outcome
from holdfast.domain.state import State
from holdfast.domain.treatment import Treatment, Window
from holdfast.trainer.order import Plain

SCRIPT = SCRIPTS / "gone_wrong.py"
STEPS, BATCH = 130, 8
ORDER: list[int] = Plain(length=STEPS * BATCH, seed=3, shuffle=True).of(0).tolist()


def gone_wrong(state: Path, *, options: tuple[object, ...] = (), steps: int = STEPS, step_s: float = 0.03, **how: Any) -> Job:
    return Job(state, script=SCRIPT, arguments=[state / "kept-job", steps, step_s, json.dumps(how)], torch=True, options=options)


def used(job: Job, ranks: int) -> dict[int, list[int]]:
    """The samples of each step, as it was done last: what was rolled back does not count."""
    last: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for rank in range(ranks):
        for line in (job.kept / f"used-{rank}").read_text().splitlines():
            generation, step, _, *numbers = line.split()
            last[rank, int(step)] = (int(generation), list(map(int, numbers)))
    ended = max(generation for generation, _ in last.values())
    final = max(step for (_, step), (generation, _) in last.items() if generation == ended)
    found: dict[int, list[int]] = {}
    for (_, step), (_, numbers) in sorted(last.items()):
        if step <= final:
            found.setdefault(step, []).extend(numbers)
    return found


def tried(ended: State) -> list[str]:
    return [plan.name for incident in ended.incidents for plan in incident.plans]


def test_a_bad_batch_is_left_out_and_nothing_else(state: Path) -> None:
    with gone_wrong(state, options=["--nproc-per-node", 2], poisoned=[ORDER[20 * BATCH + 3]]) as job:
        ended = job.finished(120.0)
    assert tried(ended) == ["replay", "skip"], ended.incidents
    assert ended.treatment == Treatment(left_out=(Window(first=20, last=20),))
    found = used(job, 2)
    batches = [sorted(ORDER[draw * BATCH : (draw + 1) * BATCH]) for draw in range(STEPS) if draw != 20]
    assert [sorted(found[step]) for step in sorted(found)] == batches
    assert all(torch.isfinite(one).all() for one in torch.load(job.kept / "weights.pt", weights_only=True).values())


def test_a_loss_that_turns_just_before_the_end_is_no_success(state: Path) -> None:
    steps = 60
    order: list[int] = Plain(length=steps * BATCH, seed=3, shuffle=True).of(0).tolist()
    with gone_wrong(state, options=["--nproc-per-node", 2], steps=steps, step_s=0.02, poisoned=[order[(steps - 4) * BATCH]]) as job:
        ended = job.finished(120.0)
    assert tried(ended) == ["replay", "skip"], ended.incidents
    assert ended.treatment == Treatment(left_out=(Window(first=steps - 4, last=steps - 4),))
    assert all(torch.isfinite(one).all() for one in torch.load(job.kept / "weights.pt", weights_only=True).values())


def test_a_node_that_computes_wrongly_is_found_out_by_a_replay_elsewhere(state: Path) -> None:
    with gone_wrong(state, options=["--nnodes", 2, "--spares", 1], bad_from=20) as job:
        ended = job.finished(120.0)
    assert tried(ended) == ["replay"], ended.incidents
    assert ended.treatment == Treatment()
    first, bad = ended.incidents[0], (job.kept / "bad_node").read_text()
    assert (first.findings[0].ranks, first.diagnoses[-1].node) == ((1,), bad), first
    assert any(f"right when another node computed the ranks of {bad}" in line.what for line in first.story), first.story
    assert bad in ended.avoided
    assert ended.checks[bad].because
    assert ended.gang is not None
    assert bad not in ended.gang.nodes
    found = used(job, 2)
    assert [sorted(found[step]) for step in sorted(found)] == [sorted(ORDER[draw * BATCH : (draw + 1) * BATCH]) for draw in range(STEPS)]


def test_without_a_spare_the_ranks_are_swapped_and_the_fault_follows_its_node(state: Path) -> None:
    with gone_wrong(state, options=["--nnodes", "1:2"], bad_from=20) as job:
        ended = job.finished(120.0)
    assert tried(ended) == ["replay", "replay"], ended.incidents
    bad = (job.kept / "bad_node").read_text()
    assert [plan.retire for incident in ended.incidents for plan in incident.plans] == ["", bad]
    assert "it computes wrongly" in ended.cordoned[bad]
    assert ended.treatment == Treatment()
    places = [line.split() for line in (job.kept / "starts").read_text().splitlines()]
    assert [rank for generation, _, rank, node in places if (generation, node) == ("2", bad)] == ["0"]
    assert [node != bad for generation, _, _, node in places if generation == "3"] == [True]


def test_a_parameter_that_flips_on_one_node_is_seen_and_done_again_elsewhere(state: Path) -> None:
    with gone_wrong(state, options=["--nnodes", 3, "--spares", 1], steps=1200, step_s=0.02, flips_at=700) as job:
        eventually((job.kept / "starts").exists, what="a first rank")
        eventually(lambda: any(one.phase is IncidentPhase.RESOLVED for one in job.incidents()), within_s=120.0, what="an incident that is over")
        job.hurry()
        ended = job.finished(180.0)
    assert tried(ended) == ["replay"], ended.incidents
    first = next(one for one in ended.incidents if one.findings[0].kind == "replicas_disagree")  # A busy disk may have skipped saves before.
    assert first.findings[0].sound <= 700 < first.findings[0].step, first
    assert first.findings[0].ranks == (1,), first.findings[0]
    assert first.diagnoses[-1].node, first
    began = {int(step) for generation, step, _, _ in map(str.split, (job.kept / "starts").read_text().splitlines()) if generation == "2"}
    assert len(began) == 1
    assert 0 < min(began) <= first.findings[0].sound, "three saves reach back 15 steps, and replicas are compared every 64 or more: one from before was kept"


def test_a_rate_that_is_too_high_is_brought_down_within_its_limits(state: Path) -> None:
    with gone_wrong(state, options=["--may-change", "lr=0.1", "--skip-batches", 0], steps=400, step_s=0.02, rate=3.0) as job:
        ended = job.finished(180.0)
    assert ended.treatment.rate == 0.5, ended.treatment
    assert not ended.treatment.left_out
    assert tried(ended)[-1] == "change"
    weights = torch.load(job.kept / "weights.pt", weights_only=True)["weight"]
    assert torch.isfinite(weights).all()


def test_what_nothing_helps_against_is_given_up_with_the_reasons(state: Path) -> None:
    with gone_wrong(state, options=["--skip-batches", 1], poisoned=ORDER[20 * BATCH : 40 * BATCH]) as job:
        assert job.wait(180.0) == PERMANENT_CODE, job.said()
    ended = job.state()
    assert ended.outcome is Outcome.PERMANENT
    assert tried(ended)[:2] == ["replay", "skip"]
    assert tried(ended)[-1] == "stop"
    assert "hopeless" in ended.because
    assert "--skip-batches" in ended.because


def test_bisect_names_the_change_that_mattered_and_leaves_the_job_as_it_was(state: Path) -> None:
    with gone_wrong(state, options=["--nproc-per-node", 2], step_s=0.0, rate=0.05) as job:
        job.finished(120.0)
    before, files = job.state(), sorted(path.name for path in job.directory.path.iterdir())
    start = min(one.step for one in list_complete(job.directory.checkpoints))
    changes = ["--change", "lr=*20", "--change", "weight_decay=1e-9", "--change", "scale=*5"]
    done = command("bisect", "job", *changes, "--steps", 8, "--from", start, "--json", torch=True, within_s=300.0, HOLDFAST_STATE=str(state))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["says"].startswith("lr=*20 mattered most"), said
    assert [(one["change"], one["matters"]) for one in said["effects"]] == [("lr=*20", True), ("scale=*5", True), ("weight_decay=1e-9", False)]
    assert said["curves"]["unchanged 1"] == said["curves"]["unchanged 2"], "they are repeated to the bit"
    assert list(said["curves"]["lr=*20"]) == [str(step) for step in range(start + 1, start + 9)]
    assert (job.state(), sorted(path.name for path in job.directory.path.iterdir())) == (before, files)
    assert not list(state.glob("bisect-*"))
    refused = command("bisect", "job", "--change", "lr=*2", "--from", 7, torch=True, HOLDFAST_STATE=str(state))
    assert refused.returncode == 2, refused
    assert f"no complete checkpoint of step 7; there are {start}, " in refused.stderr
