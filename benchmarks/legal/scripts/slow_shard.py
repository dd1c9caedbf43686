"""A shard of the data takes long to download, every 110 batches, in the process that trains."""

import time

import torch
from _training import STEPS, end, pause_s, start, train

import holdfast


class Shards(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, number):
        if number % (8 * 110) == 8 * 109:
            time.sleep(pause_s(40))
        return torch.full((32,), number / (8 * STEPS))


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step, batch in enumerate(run.steps(torch.utils.data.DataLoader(Shards(), batch_size=8))):
    train(model, optimizer, step, batch)
end(model)
