"""A DDP training that rejoins and can be hurt, of which every bit and every sample is accounted for: rejoins.py DIRECTORY STEPS STEP_S.

SIGUSR1 lets it raise in its next step; SIGUSR2 lets it swallow whatever is raised from the next step on, for good. A file slow-N makes it slow on
node-N. Dropout, moments, a scheduler and the order
of the data are all part of what must come out the same: each rank writes down the samples it used in a step and a checksum of what it then had.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import signal
import string
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
deaf = struck = False
slowed = directory / f"slow-{os.environ.get('HOLDFAST_NODE', '').rpartition('node-')[2]}"
samples = torch.arange(240)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)


def strike(*_: object) -> None:
    global struck
    struck = True  # Raised in the loop's own code: in ours, as in a save, it would be taken for a failure of ours, which ends no run.


def go_deaf(*_: object) -> None:
    global deaf
    deaf = True


def features(ids: torch.Tensor) -> torch.Tensor:
    return torch.sin(ids[:, None].float() * torch.arange(1, 17))


def pause() -> None:
    if struck:
        # Never the same twice: a fault that repeats in the same place would rightly be called permanent.
        raise ValueError("struck: " + "".join(secrets.choice(string.ascii_letters) for _ in range(12)))
    while deaf:
        (directory / "deaf").touch()
        with contextlib.suppress(BaseException):
            time.sleep(60.0)
    time.sleep(0.2 if slowed.exists() else step_s)


@holdfast.rejoin
def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    loader = torch.utils.data.DataLoader(samples, batch_sampler=holdfast.Sampler(samples, batch_size=8 * dist.get_world_size()))
    torch.manual_seed(rank)
    run = holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler, save_every=50)
    used = os.open(directory / f"used-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for ids in run.steps(loader, epochs=1 << 20):
        pause()
        loss = model(features(ids)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.report(loss=loss)
        # Not the running averages: DDP takes rank 0's, and they are gone with it.
        moments = [value for state in optimizer.state.values() for value in state.values()]
        values = [*(one.detach() for one in net.parameters()), *moments, torch.get_rng_state()]
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()
        who = f"{os.environ.get('HOLDFAST_GENERATION', 0)} {os.getpid()}"
        os.write(used, f"{run.step + 1} {who} {digest} {','.join(map(str, ids.tolist()))}\n".encode())
        if run.step + 1 == steps:
            break
    dist.destroy_process_group()


signal.signal(signal.SIGUSR1, strike)
signal.signal(signal.SIGUSR2, go_deaf)
train()
