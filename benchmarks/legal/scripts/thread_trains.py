"""A thread trains; the main one waits for it. The thread of rank 0 sleeps for a while."""

import threading
import time

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast


def training():
    for step in run.steps(STEPS):
        train(model, optimizer, step)
        if step == PAUSE_AT and rank == 0:
            time.sleep(pause_s(30))


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
thread = threading.Thread(target=training)
thread.start()
thread.join()
end(model)
