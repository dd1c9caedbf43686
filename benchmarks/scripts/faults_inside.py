"""A training with a real task and a data loader that breaks on demand: it listens in the scratch directory (holdfast/chaos/listen.py).

An order to all ranks names the step from which it holds, since replicas that began one after the other would disagree; what they were is kept, and `restore`
brings it back.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import holdfast
from holdfast.chaos.listen import Listener

RATE = 2e-3
CARRIES = ("data_stuck", "data_slow", "wrong_labels", "nan_from_data", "loss_spike", "nan_from_rank", "rate_too_high", "bit_flip", "deadlock")
scratch, compute_s, pause_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, aside = dist.get_rank(), dist.new_group()
teacher = torch.randn(64, 10)
orders = Listener(scratch, carries=CARRIES)
active = orders.active
sound: list[torch.Tensor] = []  # What the training was before something ruined it.


def listen() -> None:
    """Take new orders, and do what any script can."""
    for order in orders.new(run.step):
        if order["how"] == "restore":
            active.clear()
            put_back()
            continue
        sound[:] = [tensor.clone() for tensor in trained()] if "from_step" in order else []
        orders.begin(order)
    orders.obey()


def trained() -> list[torch.Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return [*(parameter.detach() for parameter in model.parameters()), *states]


def put_back() -> None:
    for now, before in zip(trained(), sound, strict=bool(sound)):
        now.copy_(before)
    for group in optimizer.param_groups:
        group["lr"] = RATE


class Endless(IterableDataset):
    def __iter__(self):
        dice = torch.Generator().manual_seed(rank)
        while True:
            if "data_stuck" in active:
                time.sleep(1e6)
            if "data_slow" in active:
                time.sleep(3 * pause_s)
            x = torch.randn(32, 64, generator=dice)
            y = (x @ teacher).argmax(1)
            if "wrong_labels" in active:
                y = torch.randint(0, 10, (32,), generator=dice)
            if "nan_from_data" in active:
                x[0, 0] = float("nan")
            if "loss_spike" in active:
                x = 40 * x.flip(1)
            yield x, y


model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=100)
log = os.open(scratch / f"steps-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
lever = torch.randn(128, 128)

for x, y in run.steps(DataLoader(Endless(), batch_size=None), epochs=1):
    listen()
    until = time.thread_time() + compute_s
    while time.thread_time() < until:  # Work that takes so much of a core, and longer when there is less of one.
        lever @ lever
    time.sleep(pause_s)  # As if a GPU worked: other jobs of the benchmark may have the core meanwhile.
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if "nan_from_rank" in active:  # A faulty unit: after the gradients were averaged, on this rank alone.
        next(model.parameters()).grad[0] = float("nan")
    if "rate_too_high" in active:
        for group in optimizer.param_groups:
            group["lr"] = 5.0
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    if "bit_flip" in active:
        with torch.no_grad():
            next(model.module.parameters())[3, 5] += 1e-4
        del active["bit_flip"]
    if "deadlock" in active:
        dist.barrier(group=aside)  # Where the others never come: they wait for this rank's gradients.
    run.report(loss=loss.detach(), grad_norm=norm)
    os.write(log, f"{run.step + 1} {time.monotonic()} {os.getpid()}\n".encode())
