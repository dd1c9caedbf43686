"""A small DDP training of 300 steps in which rank 0 does something after step 150, once: pauses.py DIRECTORY evaluate|asleep|unequal|late SECONDS."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import holdfast


class Shards(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(300):
            if number == 150 and what == "late" and rank == 0:
                time.sleep(seconds)
            yield torch.randn(32)


def evaluate() -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        model.module(torch.randn(64, 32)).argmax()


def asleep() -> None:
    time.sleep(seconds)


def unequal() -> None:
    dist.broadcast(torch.zeros(3), 0)


directory, what, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run = holdfast.guard(model=model, optimizer=optimizer)
for batch in run.steps(DataLoader(Shards(), batch_size=1)):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    struck = directory / "struck"
    if run.step == 150 and rank == 0 and not struck.exists():
        struck.touch()
        if what != "late":
            globals()[what]()
if rank == 0:
    (directory / "result").write_text(f"{run.step} {os.environ['HOLDFAST_GENERATION']}")
dist.destroy_process_group()  # torch aborts now and then at the end of a process that leaves its gloo group as it is.
