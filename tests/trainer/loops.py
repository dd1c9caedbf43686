"""Training loops for tests: small, with everything that must survive a restart in them. Each writes what it ended with as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast

SAMPLES = 60


class Numbered(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.sin(torch.arange(8.0) * (index + 1))


def digest(*states: Any) -> str:
    """One word for any nest of tensors and values, bit for bit."""
    hasher = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            hasher.update(local.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if local.numel() else b"")
        elif isinstance(value, dict):
            for key, item in value.items():
                hasher.update(str(key).encode())
                add(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            hasher.update(repr(value).encode())

    add(list(states))
    return hasher.hexdigest()


def make_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 8))


def train(
    *, checkpoints: str, result: str, wrap: str = "none", order: str = "holdfast", workers: int = 0, accumulate: int = 1, epochs: int = 3,
    save_every: int = 4, die_at: int = -1, die_rank: int = 0, batch_size: int = 12, stop_at: int = -1,
) -> None:  # fmt: skip
    """A loop over a loader, with dropout, batch norm, momentum, a schedule and three kinds of random numbers."""
    world_size = int(os.environ["WORLD_SIZE"])
    if wrap != "none":
        dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    model, used = make_model(), {"indices": []}
    if wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if wrap == "fsdp2":
        model = shard(world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)
    random.seed(rank), numpy.random.seed(rank), torch.manual_seed(rank)
    loader = make_loader(order, batch_size, world_size, workers)
    run = holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler, used=used, save_every=save_every, checkpoints=checkpoints)
    batches, taken = run.steps(loader, epochs=epochs, accumulate=accumulate), []
    for indices, batch in batches:
        noise = random.random() + float(numpy.random.rand()) + float(torch.rand(()))
        loss = model(batch + noise).square().mean() / accumulate
        loss.backward()
        used["indices"] += indices.tolist()
        taken += indices.tolist()
        if run.boundary:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        run.report(loss=loss)
        if run.step == die_at and rank == die_rank:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.step + 1 == stop_at:
            run.save()
            next(batches, None)  # Asking for the next says that this one is done.
            break
    ended = {"step": run.step, "digest": digest(model.state_dict(), optimizer.state_dict(), scheduler.state_dict()), "indices": used["indices"]}
    Path(f"{result}-{rank}.taken").write_text(json.dumps(taken))  # By this process alone.
    ended["drawn"] = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
    Path(f"{result}-{rank}.json").write_text(json.dumps(ended))


def shard(world_size: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("shard",))
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 15), nn.Dropout(0.3), nn.Linear(15, 8))  # 15 does not divide by 2: the shards are uneven.
    fully_shard(model, mesh=mesh)
    return model


def make_loader(order: str, batch_size: int, world_size: int, workers: int) -> DataLoader[Any]:
    dataset = Numbered()
    if order == "holdfast":
        return DataLoader(dataset, batch_sampler=holdfast.Sampler(dataset, batch_size=batch_size, seed=3), num_workers=workers)
    if order == "distributed":
        sampler = torch.utils.data.DistributedSampler(dataset, seed=3)
        return DataLoader(dataset, batch_size=batch_size // world_size, sampler=sampler, num_workers=workers)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers)


def measured(
    *, steps: int = 40, slow_rank: int = -1, slow_s: float = 0.0, nan_rank: int = -1, nan_at: int = -1, drift_rank: int = -1, by_name: bool = False,
    buffers: bool = False,
) -> None:  # fmt: skip
    """Steps of DDP, or of gradients that are averaged by name, whose parts are known; what is reported is known too."""
    dist.init_process_group("gloo")
    rank, tokens = dist.get_rank(), holdfast.gauge("tokens_per_s", unit="1/s")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)) if buffers else nn.Linear(32, 32)
    model = plain if by_name else nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    run = holdfast.guard(model=model, optimizer=optimizer)
    for step in run.steps(steps):
        if rank == slow_rank:
            time.sleep(slow_s)
        loss = model(torch.ones(4, 32)).pow(2).mean() * (float("nan") if (rank, step) == (nan_rank, nan_at) else 1.0)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters() if by_name else ():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == drift_rank and step == steps // 2:
            with torch.no_grad():
                plain.bias[3] += 1e-6
        run.report(loss=loss, grad_norm=2.0, accuracy=0.75)
        tokens.set(1000 + rank)
        with run.phase("eval"):
            time.sleep(0.005)
    dist.barrier()
