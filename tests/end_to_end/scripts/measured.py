"""A small DDP training that says everything there is to say about a training: measured.py DIRECTORY SAMPLES. A file `crash` there makes rank 1 fail once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

directory, samples = Path(sys.argv[1]), int(sys.argv[2])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
loader = DataLoader(TensorDataset(torch.randn(samples, 32)), batch_sampler=holdfast.Sampler(samples, batch_size=16, seed=1))
run = holdfast.guard(model=model, optimizer=optimizer, save_every=20)
reward = holdfast.gauge("reward")
for (batch,) in run.steps(loader):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    run.report(loss=loss, grad_norm=norm, validation_loss=1.1 * loss.item(), accuracy=0.5, tokens_per_second=1000.0)
    reward.set(run.step)
    time.sleep(0.05)
    if rank == 1 and (directory / "crash").exists():
        (directory / "crash").unlink()
        raise RuntimeError("as it was told")
dist.destroy_process_group()
