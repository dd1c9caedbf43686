"""Rank 0 uploads, is refused, and tries again after 1, 2, 4, 8 and 16 seconds."""

import time

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast


def upload(attempt):
    if attempt < 5:
        raise ConnectionRefusedError("503 slow down")


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        for attempt in range(6):
            try:
                upload(attempt)
            except ConnectionRefusedError:
                time.sleep(pause_s(2**attempt))
end(model)
