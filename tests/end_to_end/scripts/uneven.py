"""A small DDP training in which one rank has more to compute than the others: uneven.py DIRECTORY SLOW-RANK. It trains until it is stopped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast


class Uneven(nn.Module):
    """The same on all ranks but for the extra work of its forward pass, which changes nothing."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.layer, self.extra = nn.Linear(32, 8), extra
        self.register_buffer("weight", torch.randn(256, 256), persistent=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for _ in range(self.extra):
                torch.mm(self.weight, self.weight)
        return self.layer(batch)


directory, slow = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(Uneven(40 if rank == slow else 1), broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, save_every=0)
progress = os.open(directory / f"rank-{rank}", os.O_WRONLY | os.O_CREAT, 0o644)
for step in run.steps(1_000_000):
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    os.pwrite(progress, f"{step + 1:10}".encode(), 0)
dist.destroy_process_group()
