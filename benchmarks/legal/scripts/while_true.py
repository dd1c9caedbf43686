"""`while True` with `next()` and a limit of time, which the ranks agree on; one request for data takes long."""

import time

import torch
import torch.distributed as dist
from _training import PAUSE_AT, end, pause_s, start, train

import holdfast


def batches():
    number = 0
    while True:
        number += 1
        if number == PAUSE_AT:
            time.sleep(pause_s(30))
        yield torch.full((8, 32), number / 1000)


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
until = time.time() + pause_s(30) + 10
source, step = iter(run.steps(batches())), 0
while True:
    train(model, optimizer, step, next(source))
    step += 1
    over = torch.tensor(float(time.time() > until))
    dist.all_reduce(over)
    if over > 0:
        break
end(model, exact=False)
