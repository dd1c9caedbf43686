"""Mirrored pairs of blocks: `plain`, the bare loop with Holdfast's processes stopped, and `guarded`, the same steps inside its lines with all of them at work.

One process group, and two models that are alike: the bare one has none of our hooks. The benchmark writes `PAIRS STEPS SEED PID...` into the file `go`. Every
rank appends one line per pair to a file of its own: which kind came first, then wall and CPU seconds of the four blocks in order.
"""

import math
import os
import random
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

scratch, step_s, device = sys.argv[1], float(sys.argv[2]), sys.argv[3]

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("nccl" if device == "cuda" else "gloo")
rank = dist.get_rank()
width, batch = (4096, 1024) if device == "cuda" else (256, 64)
bare, model = (DistributedDataParallel(torch.nn.Linear(width, width).to(device)) for _ in range(2))  # One that has none of our hooks.
bare_optimizer, optimizer = (torch.optim.SGD(one.parameters(), lr=1e-4) for one in (bare, model))
run = holdfast.guard(model=model, optimizer=optimizer, save_every=0)
steps = run.steps(10**9)
x = torch.randn(batch, width, device=device)


def finish() -> None:
    """Wait for the device: a loop that ran ahead of it would hide what our lines take."""
    if device == "cuda":
        torch.cuda.synchronize()


def train(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    for _ in range(repeats - 1):
        model.module(x)  # Work of an adjustable length; only the last pass talks to the other ranks.
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    finish()
    return loss


def plain(count: int) -> None:
    for _ in range(count):
        train(bare, bare_optimizer)


def guarded(count: int) -> None:
    for _ in range(count):
        next(steps)
        run.report(loss=train(model, optimizer))


def repeats_for(seconds: float) -> int:
    """How much work makes a step of at least so long; the same on every rank. By CPU time where it can be, since a busy machine would make it too little."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    for _ in range(2):  # The first time warms up.
        dist.barrier()
        finish()
        began = clock()
        for _ in range(1000):
            model.module(x)
        finish()
        took = clock() - began
    needed = torch.tensor(float(math.ceil(1000 * seconds / took)), device=device)
    dist.all_reduce(needed, dist.ReduceOp.MAX)
    return int(needed)


def signal_ours(signum: int) -> None:
    """Rank 0 for all; nobody goes on before it is done."""
    if rank == 0:
        for pid in ours:
            os.kill(pid, signum)
    dist.barrier()
    finish()


def block(kind: str) -> tuple[float, float]:
    signal_ours(signal.SIGSTOP if kind == "plain" else signal.SIGCONT)
    began, cpu_began = time.perf_counter(), time.process_time()
    {"plain": plain, "guarded": guarded}[kind](count)
    return time.perf_counter() - began, time.process_time() - cpu_began


repeats = repeats_for(step_s)
plain(5)
guarded(130)  # What is done for the first time, such as the second look at the parameters, loads code onto the GPU, and is no part of a step.
out = os.open(os.path.join(scratch, f"blocks-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while not os.path.exists(os.path.join(scratch, "go")):
    time.sleep(0.01)
with open(os.path.join(scratch, "go")) as file:
    pairs, count, seed, *ours = map(int, file.read().split())
lots = random.Random(seed)  # The same on every rank.
for _ in range(pairs):
    order = lots.choice((("plain", "guarded", "guarded", "plain"), ("guarded", "plain", "plain", "guarded")))
    times = [block(kind) for kind in order]
    os.write(out, f"{order[0]} {' '.join(f'{wall} {cpu}' for wall, cpu in times)}\n".encode())
signal_ours(signal.SIGCONT)
while os.path.exists(os.path.join(scratch, "go")):  # The processes are still to be asked what they used.
    time.sleep(0.01)
dist.destroy_process_group()
