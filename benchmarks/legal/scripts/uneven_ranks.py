"""Rank 0 is five times slower than the others, all the time."""

import time

from _training import STEPS, end, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(3 * STEPS):
    train(model, optimizer, step)
    if rank == 0:
        time.sleep(0.025)
end(model)
