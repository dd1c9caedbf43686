"""Python collects garbage for ten seconds, with the interpreter held, on the last rank."""

import gc
import time

import torch.distributed as dist
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast


def collect(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rings = [[] for _ in range(3_000_000)]
        for ring in rings:
            ring.append(ring)
        del rings, ring
        gc.collect()


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == dist.get_world_size() - 1:
        collect(pause_s(10))
end(model)
