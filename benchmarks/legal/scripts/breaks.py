"""The loop is left by `break`, and rank 0 exports the model while the others wait at a barrier."""

import torch.distributed as dist
from _training import PAUSE_AT, compute, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(1_000_000):
    train(model, optimizer, step)
    if step >= PAUSE_AT:
        break
if rank == 0:
    compute(pause_s(40))
dist.barrier()
end(model)
