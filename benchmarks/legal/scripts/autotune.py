"""Rank 0 tries many ways to compute the same for minutes, with a rest after each."""

import time

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast


def autotune(seconds):
    until, values = time.monotonic() + seconds, torch.ones(512, 512)
    size = 16
    while time.monotonic() < until:
        size = size * 2 if size < 512 else 16
        for block in values.split(size):
            block @ values
        time.sleep(0.05)


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        autotune(pause_s(150))
end(model)
