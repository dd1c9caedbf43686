"""Each rank saves its part between two barriers; the disk of the last one is slow."""

import os
import time

import torch
import torch.distributed as dist
from _training import SCRATCH, STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step in (120, 200):
        dist.barrier()
        torch.save(model.state_dict(), os.path.join(SCRATCH, f"part-{rank}.pt"))
        if rank == dist.get_world_size() - 1:
            time.sleep(pause_s(30))
        dist.barrier()
end(model)
