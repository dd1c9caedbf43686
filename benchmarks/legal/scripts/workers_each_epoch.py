"""Loader workers are started again for each epoch, and each takes a while to open its files."""

import time

import torch
from _training import STEPS, end, pause_s, start, train

import holdfast

EPOCHS = 3


def open_files(worker):
    time.sleep(pause_s(15))


data = torch.linspace(0, 1, 8 * STEPS // EPOCHS).repeat(32, 1).T
rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, worker_init_fn=open_files)
for step, batch in enumerate(run.steps(loader, epochs=EPOCHS)):
    train(model, optimizer, step, batch)
end(model)
