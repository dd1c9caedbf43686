"""A stream of data with two loader workers, each of which stops for a shard now and then: an IterableDataset, without a length."""

import time

import torch
from _training import STEPS, end, pause_s, start, train

import holdfast


class Shards(torch.utils.data.IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for number in range(worker.id, 8 * STEPS, worker.num_workers):
            if number // worker.num_workers % 500 == 499:
                time.sleep(pause_s(40))
            yield torch.full((32,), number / (8 * STEPS))


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step, batch in enumerate(run.steps(torch.utils.data.DataLoader(Shards(), batch_size=8, num_workers=2))):
    train(model, optimizer, step, batch)
end(model)
