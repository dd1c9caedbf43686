"""A DDP training that rejoins in gangs of any size, of which every bit and every sample is accounted for: resizes.py DIRECTORY STEPS STEP_S.

A step is ten samples, however many ranks there are. Model, optimizer and loader are made outside of the function that is called again, so that what was made
for one size must do for another. Each rank writes down how many there are, the samples it used in a step, and a checksum of what it then had.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
samples = torch.arange(240)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(samples, batch_sampler=holdfast.Sampler(samples, batch_size=10, resize=True))


def features(ids: torch.Tensor) -> torch.Tensor:
    return torch.sin(ids[:, None].float() * torch.arange(1, 17))


@holdfast.rejoin
def train() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    run = holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler, save_every=20, checkpoints=directory / "checkpoints")
    used, ids = os.open(directory / f"used-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), []
    for batch in run.steps(loader, epochs=1 << 20):
        if run.step >= steps:
            break
        time.sleep(step_s / run.accumulate)
        loss = model(features(batch)).square().mean() * run.weight
        loss.backward()
        ids += batch.tolist() if run.weight else []
        if not run.boundary:
            continue
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.report(loss=loss)
        moments = [value for state in optimizer.state.values() for value in state.values()]
        digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in (*net.parameters(), *moments))).hexdigest()
        who = f"{os.environ.get('HOLDFAST_GENERATION', 0)} {os.getpid()}"
        os.write(used, f"{run.step + 1} {who} {ranks} {digest} {','.join(map(str, ids))}\n".encode())
        ids = []
        if run.step + 1 == steps:
            run.save()  # For the gang of another size that goes on.
    dist.destroy_process_group()


train()
