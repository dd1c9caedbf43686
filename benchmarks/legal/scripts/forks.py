"""Ranks fork in the loop: the child writes what is in memory, slowly, and the parent waits for it at the next save."""

import os
import time

from _training import SCRATCH, STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
child = None
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step % 80 == 70:
        if child is not None:
            assert os.waitpid(child, 0)[1] == 0
        child = os.fork()
        if child == 0:
            with open(os.path.join(SCRATCH, f"forked-{rank}"), "w") as file:
                file.write(str(step))
            time.sleep(pause_s(15))
            os._exit(0)
os.waitpid(child, 0)
end(model)
