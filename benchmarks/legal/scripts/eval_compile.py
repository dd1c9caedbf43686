"""Rank 0 compiles a model in the middle of the training, for an evaluation with several shapes."""

import time

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        until, width = time.monotonic() + pause_s(40), 16
        while width == 16 or time.monotonic() < until:
            width += 16
            layers = torch.nn.Sequential(*(torch.nn.utils.skip_init(torch.nn.Linear, width, width) for _ in range(2)))
            with torch.no_grad():
                torch.compile(layers)(torch.ones(8, width))
            torch.compiler.reset()
end(model)
