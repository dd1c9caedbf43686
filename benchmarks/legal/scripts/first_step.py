"""The first step takes two minutes, as one that compiles does; the others wait for rank 0."""

import time

from _training import STEPS, compute, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    if step == 0 and rank == 0:
        compute(pause_s(120) / 4)
        time.sleep(3 * pause_s(120) / 4)  # Its compiler works elsewhere.
    train(model, optimizer, step)
end(model)
