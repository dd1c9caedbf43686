"""Rank 0 evaluates in a loop of its own; the others wait in their next all-reduce."""

from _training import PAUSE_AT, STEPS, compute, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    loss = train(model, optimizer, step)
    run.report(loss=loss)
    if step == PAUSE_AT and rank == 0:
        compute(pause_s(40))
end(model)
