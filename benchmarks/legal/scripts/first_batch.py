"""The first batch takes two minutes: the data set makes its index when it is first asked, on every rank."""

import time

import torch
from _training import STEPS, end, pause_s, start, train

import holdfast


class Indexed(torch.utils.data.Dataset):
    index = None

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, number):
        if self.index is None:
            time.sleep(pause_s(120))
            self.index = range(8 * STEPS)
        return torch.full((32,), self.index[number] / (8 * STEPS))


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step, batch in enumerate(run.steps(torch.utils.data.DataLoader(Indexed(), batch_size=8))):
    train(model, optimizer, step, batch)
end(model)
