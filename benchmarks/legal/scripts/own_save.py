"""The script saves by itself, large files, and waits until the disk has them."""

import os
import time

import torch
from _training import PAUSE_AT, SCRATCH, STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        until = time.monotonic() + pause_s(25)
        while time.monotonic() < until:
            with open(os.path.join(SCRATCH, "own.pt"), "wb") as file:
                torch.save({"model": model.state_dict(), "large": torch.zeros(25_000_000)}, file)
                file.flush()
                os.fsync(file.fileno())
            time.sleep(0.5)
        os.unlink(os.path.join(SCRATCH, "own.pt"))
end(model)
