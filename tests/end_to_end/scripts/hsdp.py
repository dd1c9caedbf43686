"""A small HSDP training: replicas of two ranks, each of which holds half of the state, as many as there are ranks for.

hsdp.py DIRECTORY STEPS STEP_S: DIRECTORY outlives the ranks and holds how far they are. With a file `hurry` in it, steps take no longer than they must. With
REJOINS=1 in the environment, ranks that live on keep their processes and what they hold.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


def train() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "fsdp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=5)
    if rank == 0:
        with (directory / "begins").open("a") as begins:
            begins.write(f"{os.environ['HOLDFAST_GENERATION']} {world_size} {run.step}\n")
    progress = os.open(directory / f"rank-{rank}", os.O_WRONLY | os.O_CREAT, 0o644)
    for step in run.steps(steps):
        torch.manual_seed(1000 * step + rank)
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
        os.pwrite(progress, f"{step + 1:10}".encode(), 0)
        time.sleep(0.0 if (directory / "hurry").exists() else step_s)
    dist.destroy_process_group()


(holdfast.rejoin(train) if os.environ.get("REJOINS") else train)()
