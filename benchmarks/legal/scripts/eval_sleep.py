"""Rank 0 waits for an evaluation that is made elsewhere, and sleeps until it is there."""

import time

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        time.sleep(pause_s(90))
end(model)
