"""A plain training of most of a minute; who runs it stops the terminal's processes meanwhile, and lets them go on."""

import time

from _training import STEPS, end, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(3 * STEPS):
    train(model, optimizer, step)
    time.sleep(0.05)
end(model)
