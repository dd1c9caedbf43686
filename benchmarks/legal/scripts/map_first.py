"""Rank 0 maps the data set and writes the result, while the others wait at a barrier; then all read it."""

import os

import torch
import torch.distributed as dist
from _training import SCRATCH, STEPS, compute, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
path = os.path.join(SCRATCH, "mapped.pt")
if rank == 0:
    compute(pause_s(60))
    torch.save(torch.linspace(0, 1, STEPS), path)
dist.barrier()
mapped = torch.load(path)
for step in run.steps(STEPS):
    train(model, optimizer, step, mapped[step].expand(8, 32))
end(model)
