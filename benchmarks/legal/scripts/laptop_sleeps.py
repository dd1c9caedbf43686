"""A plain training; who runs it stops every process of the job at once meanwhile, and lets them go on."""

from _training import STEPS, end, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(3 * STEPS):
    train(model, optimizer, step)
end(model)
