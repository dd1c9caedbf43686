"""Blocks of steps on demand: `plain`, the bare loop, or `guarded`, the same steps inside Holdfast's lines. One process group, one model for both.

The benchmark writes `NUMBER KIND STEPS` into the file `go`; every rank runs that block and appends `NUMBER SECONDS CPU-SECONDS` to a file of
its own.
"""

import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

scratch, step_s = sys.argv[1], float(sys.argv[2])

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=0)
steps = run.steps(10**9)
x = torch.randn(64, 256)


def train(repeats: int) -> torch.Tensor:
    for _ in range(repeats - 1):
        model.module(x)  # Work of an adjustable length; only the last pass talks to the other ranks.
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def plain(count: int) -> None:
    for _ in range(count):
        train(repeats)


def guarded(count: int) -> None:
    for _ in range(count):
        next(steps)
        run.report(loss=train(repeats))


def repeats_for(seconds: float) -> int:
    """How much work makes a step of at least so long; the same on every rank. By CPU time, since a busy machine would make it too little."""
    dist.barrier()
    began = time.process_time()
    for _ in range(3000):
        model.module(x)
    needed = torch.tensor(float(math.ceil(3000 * seconds / (time.process_time() - began))))
    dist.all_reduce(needed, dist.ReduceOp.MAX)
    return int(needed)


repeats = repeats_for(step_s)
guarded(5)
out = os.open(os.path.join(scratch, f"blocks-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(out, b"0 0.0 0.0\n")
done = 0
while True:
    try:
        with open(os.path.join(scratch, "go")) as file:
            number, kind, count = file.read().split()
    except FileNotFoundError:
        number = "0"
    if int(number) == done:
        time.sleep(0.005)
        continue
    done = int(number)
    if kind == "end":
        break
    dist.barrier()
    began, cpu_began = time.perf_counter(), time.process_time()
    {"plain": plain, "guarded": guarded}[kind](int(count))
    os.write(out, f"{done} {time.perf_counter() - began} {time.process_time() - cpu_began}\n".encode())
dist.destroy_process_group()
