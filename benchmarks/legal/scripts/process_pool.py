"""A pool of processes works for the step, for long now and then; all ranks have one."""

import multiprocessing
import time

import torch
from _training import STEPS, end, pause_s, start, train

import holdfast


def prepare(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    return 0.5


with multiprocessing.get_context("fork").Pool(2) as pool:
    rank, model, optimizer = start()
    run = holdfast.guard(model=model, optimizer=optimizer)
    for step in run.steps(STEPS):
        values = pool.map(prepare, [pause_s(15) if step in (120, 200) else 0.0] * 2)
        train(model, optimizer, step, torch.full((8, 32), sum(values)))
end(model)
