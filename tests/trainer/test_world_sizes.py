"""Real ranks that are killed and come back as more or fewer: each step has the samples it would have had, and the weights are those of one rank alone."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from trainer.gang import Gang, run_gang
from trainer.loops import SAMPLES, Numbered

import holdfast

EPOCHS = 2


def train(*, kept: str, checkpoints: str, die_at: int = -1) -> None:
    """13 samples a step do not divide by any number of ranks, nor do they divide the data set."""
    dist.init_process_group("gloo")
    rank, where = dist.get_rank(), Path(kept)
    torch.manual_seed(7)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = holdfast.Sampler(SAMPLES, batch_size=13, seed=5, resize=True)
    loader = DataLoader(Numbered(), batch_sampler=sampler, num_workers=1, prefetch_factor=3, persistent_workers=True)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=2, checkpoints=checkpoints)
    ids: list[int] = []
    with (where / f"rank-{rank}").open("a") as lines:
        for indices, batch in run.steps(loader, epochs=EPOCHS):
            (model(batch).square().mean() * run.weight).backward()
            ids += indices.tolist() if run.weight else []
            if not run.boundary:
                continue
            optimizer.step()
            optimizer.zero_grad()
            lines.write(json.dumps({"step": run.step, "generation": int(os.environ["HOLDFAST_GENERATION"]), "ids": ids}) + "\n")
            lines.flush()
            ids = []
            if run.step == die_at and rank == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        torch.save(model.module.state_dict(), where / "weights.pt")
    dist.barrier()


def live(directory: Path, lives: list[tuple[int, int]]) -> None:
    """Generations of (ranks, the step in which the last of them is killed)."""
    directory.mkdir()
    checkpoints = str(directory / "checkpoints")
    for generation, (ranks, die_at) in enumerate(lives, start=1):
        env = {"HOLDFAST_GENERATION": str(generation), "HOLDFAST_CHECKPOINTS": checkpoints}
        options: dict[str, Any] = {"ranks": ranks, "env": env, "kept": str(directory), "checkpoints": checkpoints, "die_at": die_at}
        if die_at < 0:
            run_gang(directory / f"g{generation}", train, **options)
            continue
        with Gang(directory / f"g{generation}", train, **options) as gang:
            gang.wait_for_exit(ranks - 1)


def samples(directory: Path) -> list[list[int]]:
    """Of each step what the last generation that made it was given, over all ranks."""
    rows = [json.loads(line) for path in sorted(directory.glob("rank-*")) for line in path.read_text().splitlines()]
    newest: dict[int, int] = {}
    for row in rows:
        newest[row["step"]] = max(newest.get(row["step"], 0), row["generation"])
    return [sorted(id for row in rows if (row["step"], row["generation"]) == (step, newest[step]) for id in row["ids"]) for step in sorted(newest)]


def test_ranks_that_are_killed_and_come_back_as_fewer_and_more_lose_and_double_nothing(tmp_path: Path) -> None:
    live(tmp_path / "whole", [(1, -1)])
    live(tmp_path / "broken", [(2, 3), (1, 6), (3, -1)])
    found = samples(tmp_path / "broken")
    assert found == samples(tmp_path / "whole")
    per_epoch = -(-SAMPLES // 13)
    for epoch in range(EPOCHS):
        assert sorted(id for step in found[epoch * per_epoch : (epoch + 1) * per_epoch] for id in step) == list(range(SAMPLES))
    weights, expected = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("broken", "whole"))
    for name, tensor in expected.items():
        assert torch.allclose(weights[name], tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # By torchdata 0.11, of torch 2.13.
def test_a_stateful_loader_is_kept_as_a_piece(tmp_path: Path) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def go(stop_at: int) -> list[int]:
        loader = torchdata.StatefulDataLoader(range(SAMPLES), batch_size=4)
        run = holdfast.guard(loader=loader, save_every=1, checkpoints=tmp_path)
        used: list[int] = []
        for batch in run.steps(loader):
            if run.step == stop_at:
                break
            used += batch.tolist()
        return used

    assert go(6) + go(-1) == list(range(SAMPLES))
