"""Training with every legal pause: a slow first step, steps of uneven length, saves, and evaluations on one rank that the others wait for."""

import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

scratch, lasts_s = sys.argv[1], float(sys.argv[2])

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)))
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, save_every=25)
log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
chance = random.Random(1)  # The same on every rank.
began = time.monotonic()


def evaluate(seconds: float) -> None:
    """Rank 0 computes, the others wait for it: from outside they look as if they hung."""
    with run.phase("eval"):
        until = time.monotonic() + seconds
        while rank == 0 and time.monotonic() < until:
            with torch.no_grad():
                model.module(torch.randn(64, 256))
        dist.barrier()


for step in run.steps(1_000_000):
    if step == 0:
        time.sleep(20.0)  # As if it compiled.
    x = torch.randn(32, 256)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(chance.choice((0.02, 0.02, 0.02, 0.02, 0.1, 0.3)))
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
    if step % 100 == 99:
        evaluate(chance.uniform(3.0, 12.0))
    over = torch.tensor(float(time.monotonic() - began > lasts_s))
    dist.all_reduce(over)  # All ranks leave after the same step.
    if over > 0:
        break
dist.destroy_process_group()
