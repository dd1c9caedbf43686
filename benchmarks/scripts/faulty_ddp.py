"""Training that breaks on demand: the file `do-RANK` in the scratch directory says how, and what has begun is written to `began`.

sleep     waits for ever for something that does not come
spin      computes for ever and holds the GIL: no other thread of the process runs again
"""

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

scratch = sys.argv[1]

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=20)
log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def break_if_asked() -> None:
    try:
        with open(os.path.join(scratch, f"do-{rank}")) as file:
            how = file.read()
    except FileNotFoundError:
        return
    os.unlink(os.path.join(scratch, f"do-{rank}"))
    with open(os.path.join(scratch, "began.new"), "w") as file:
        file.write(str(time.time()))
    os.replace(os.path.join(scratch, "began.new"), os.path.join(scratch, "began"))
    if how == "sleep":
        time.sleep(1e6)
    sum(itertools.repeat(0))


for step in run.steps(1_000_000):
    break_if_asked()
    x = torch.randn(8, 64)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.02)
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
