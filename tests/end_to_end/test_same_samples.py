"""A job that needs four times the memory it has, or loses a node and gets it back, makes each step of the samples it would have had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from end_to_end.jobs import SCRIPTS, Job, bring_back, eventually, lose_node
from torch import nn

import holdfast
from holdfast.domain.diagnosis import Cause


def resized(state: Path, *, options: list[object], room: int = 16, epochs: int = 3, step_s: float = 0.0) -> Job:
    return Job(state, options=options, script=SCRIPTS / "resized.py", arguments=[state / "kept-job", room, epochs, step_s], torch=True)


def steps(job: Job) -> dict[int, list[dict[str, Any]]]:
    """For each step what its ranks did in the generation that finished it."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(job.kept.glob("steps-*")):
        for row in map(json.loads, path.read_text().splitlines()):
            found.setdefault(row["step"], []).append(row)
    newest = {step: max(row["generation"] for row in rows) for step, rows in found.items()}
    return {step: [row for row in found[step] if row["generation"] == newest[step]] for step in sorted(found)}


def samples(job: Job) -> list[list[int]]:
    return [sorted(id for row in rows for id in row["ids"]) for rows in steps(job).values()]


def with_enough() -> tuple[list[float], list[list[int]], dict[str, torch.Tensor]]:
    """The same training in one process that has all the memory it wants: losses, samples of each step, weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    sampler = holdfast.Sampler(80, batch_size=32, seed=3, rank=0, world_size=1)
    losses, batches = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for indices in sampler:
            batch = torch.stack([torch.sin(torch.arange(8.0) * (index + 1)) for index in indices])
            loss = (model(batch) - batch.flip(1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            batches.append(sorted(indices))
    return losses, batches, model.state_dict()


def test_with_a_quarter_of_the_memory_it_needs_a_job_ends_with_the_same_batch_and_the_same_losses(state: Path) -> None:
    losses, batches, weights = with_enough()
    with resized(state, options=["--nproc", 2], room=4) as job:
        ended = job.finished(120.0)
    assert (ended.fitting.micro_batch, ended.fitting.fits, ended.fitting.too_big) == (4, 4, 8)
    plans = [plan for incident in ended.incidents for plan in incident.plans]
    assert [plan.fitting.micro_batch for plan in plans if plan.fitting] == [8, 4]
    assert {diagnosis.cause for incident in ended.incidents for diagnosis in incident.diagnoses} == {Cause.OUT_OF_MEMORY}
    made = list(steps(job).values())
    assert samples(job) == batches
    assert [sum(row["loss"] for row in rows) for rows in made] == pytest.approx(losses, rel=1e-4)
    assert {row["accumulate"] for row in made[3]} == {4}
    found = torch.load(job.kept / "weights-0.pt", weights_only=True)
    for name, tensor in weights.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.slow
def test_a_job_that_loses_a_node_and_gets_it_back_makes_every_step_of_the_same_samples(state: Path) -> None:
    epochs, sampler = 30, holdfast.Sampler(80, batch_size=32, seed=3, rank=0, world_size=1)
    with resized(state, options=["--nnodes", "1:2", "--resize-every-s", 0], epochs=epochs, step_s=0.15) as job:
        eventually(lambda: len(steps(job)) >= 8, what="eight steps")
        gang = job.state().gang
        assert gang is not None
        spec = lose_node(job, gang.nodes[1])
        eventually(lambda: any(row["generation"] == 2 for rows in steps(job).values() for row in rows), what="a step of one rank")
        bring_back(job, gang.nodes[1], spec)
        ended = job.finished(120.0)
    assert [(len(change.before), len(change.after)) for change in ended.changes] == [(2, 1), (1, 2)]
    expected = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        expected += [sorted(batch) for batch in sampler]
    assert samples(job) == expected
    assert {row["accumulate"] for rows in steps(job).values() for row in rows if row["generation"] == 2 and row["step"] % 3 < 2} == {2}
