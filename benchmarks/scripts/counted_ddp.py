"""A training that ends, whose every sample is counted: each rank writes down which samples it used in which step, and at the end a digest of the weights.

`counted_ddp.py SCRATCH EPOCHS`. A step that is done again after a failure is written down again, and must have used the same samples.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import holdfast
from holdfast.chaos.listen import Listener

SAMPLES, BATCH = 480, 8
scratch, epochs = Path(sys.argv[1]), int(sys.argv[2])


class Numbered(Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.sin(torch.arange(64) * (1 + index))


torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)))
optimizer = torch.optim.AdamW(model.parameters())
data = Numbered()
loader = DataLoader(data, batch_sampler=holdfast.Sampler(data, batch_size=BATCH))
run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)
orders = Listener()
used = os.open(scratch / f"used-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
log = os.open(scratch / f"steps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for numbers, x in run.steps(loader, epochs=epochs):
    orders.listen(run.step)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.01)
    os.write(used, f"{run.step} {','.join(map(str, numbers.tolist()))}\n".encode())
    os.write(log, f"{run.step + 1} {time.monotonic()} {os.getpid()}\n".encode())
digest = hashlib.blake2b(b"".join(tensor.numpy().tobytes() for tensor in model.module.state_dict().values()))
(scratch / f"weights-{rank}").write_text(digest.hexdigest())
