"""All ranks are held to a single core, where rank 0 evaluates while the others wait."""

import os

from _training import PAUSE_AT, STEPS, compute, end, pause_s, start, train

import holdfast

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        compute(pause_s(30))
end(model)
