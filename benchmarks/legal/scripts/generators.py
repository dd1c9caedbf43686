"""The loop is a generator within a generator; the one that takes its losses does other things in between."""

from _training import PAUSE_AT, STEPS, compute, end, pause_s, start, train

import holdfast


def losses():
    for step in run.steps(STEPS):
        yield step, train(model, optimizer, step).item()


def smoothed():
    mean = 1.0
    for step, loss in losses():
        mean = 0.9 * mean + 0.1 * loss
        yield step, mean


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step, _ in smoothed():
    if step == PAUSE_AT and rank == 0:
        compute(pause_s(30))
end(model)
