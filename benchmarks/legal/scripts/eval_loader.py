"""Rank 0 evaluates over a DataLoader whose workers are slow."""

import time

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

BATCHES = 30


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * BATCHES

    def __getitem__(self, number):
        time.sleep(2 * pause_s(40) / (8 * BATCHES))  # Decoded, by two workers at a time.
        return torch.full((32,), float(number))


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(Pictures(), batch_size=8, num_workers=2, generator=torch.Generator()):
                model.module(batch)
end(model)
