"""A DDP training over a data set, whose steps may be cut up otherwise: resized.py DIRECTORY ROOM EPOCHS STEP_S.

ROOM samples fit at once: with more, it raises what torch raises on a GPU that is full. DIRECTORY outlives the ranks and holds which samples each step was made
of, and its loss.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast

directory, room, epochs, step_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this "
    "process has 7.00 GiB memory in use. Of the allocated memory 6.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
)


class Numbered(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.sin(torch.arange(8.0) * (index + 1))


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
loader = DataLoader(Numbered(), batch_sampler=holdfast.Sampler(80, batch_size=32, seed=3, resize=True), num_workers=1)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=1)
with (directory / f"steps-{rank}").open("a") as steps:
    ids: list[int] = []
    loss_of_step = 0.0
    for indices, batch in run.steps(loader, epochs=epochs):
        if len(indices) > room and run.step >= 2:
            raise torch.OutOfMemoryError(FULL)
        loss = (model(batch) - batch.flip(1)).square().mean() * run.weight
        loss.backward()
        ids += indices.tolist() if run.weight else []
        loss_of_step += loss.item()
        if run.boundary:
            optimizer.step()
            optimizer.zero_grad()
            run.report(loss=loss_of_step)
            row = {"generation": int(os.environ["HOLDFAST_GENERATION"]), "step": run.step, "ids": ids, "loss": loss_of_step / world_size}
            steps.write(json.dumps({**row, "accumulate": run.accumulate}) + "\n")
            steps.flush()
            ids, loss_of_step = [], 0.0
            time.sleep(step_s)
torch.save(model.module.state_dict(), directory / f"weights-{rank}.pt")
dist.destroy_process_group()
