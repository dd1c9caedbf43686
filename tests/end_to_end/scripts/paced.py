"""A small DDP training that does not say how often to save, and keeps all that it saved: paced.py DIRECTORY STEPS STEP_S."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rank = int(os.environ["RANK"])
with (directory / "starts").open("a") as starts:
    starts.write(f"{os.environ['HOLDFAST_GENERATION']} {rank} {os.getpid()}\n")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, keep=10_000)
progress = os.open(directory / f"rank-{rank}", os.O_WRONLY | os.O_CREAT, 0o644)
for step in run.steps(steps):
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    os.pwrite(progress, f"{step + 1:10}".encode(), 0)
    time.sleep(step_s)
dist.destroy_process_group()
