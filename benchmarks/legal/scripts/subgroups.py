"""Each rank works in a group of its own for a while, rank 0 for longer; the others wait at a barrier whose limit is two hours."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start(timeout=timedelta(hours=2))
alone = [dist.new_group([one]) for one in range(dist.get_world_size())][rank]
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT:
        until, values = time.monotonic() + (pause_s(35) if rank == 0 else 1.0), torch.ones(64, 64)
        while time.monotonic() < until:
            dist.all_reduce(values, group=alone)
            values = torch.tanh(values @ values)
        dist.monitored_barrier(timeout=timedelta(hours=2))
end(model)
