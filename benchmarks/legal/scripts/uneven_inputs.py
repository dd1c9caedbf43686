"""Ranks have different amounts of data; DDP's `join` lets the others follow the one that has most, which is slow for a while."""

import time

import torch
from _training import STEPS, end, pause_s, start, train

import holdfast

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
data = torch.linspace(0, 1, 8 * (STEPS - 60 * rank)).repeat(32, 1).T
loader = torch.utils.data.DataLoader(data, batch_size=8)
with model.join():
    for step, batch in enumerate(run.steps(loader)):
        train(model, optimizer, step, batch)
        if step == STEPS - 30:
            time.sleep(pause_s(30))
end(model)
