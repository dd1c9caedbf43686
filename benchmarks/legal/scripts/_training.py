"""What these scripts share: a small training, its pauses, and what they write down.

The first argument is the directory for step logs (`STEP MONOTONIC PID`, step 0 when the training is about to begin) and for `end-RANK`, a rank's last line.
HOLDFAST_PAUSE_S is the longest pause, for a first look. A step takes a few milliseconds: what watches it has soon seen a hundred of them.
"""

import hashlib
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 240
PAUSE_AT = 150  # In the middle, with all that was learned from quick steps.
SCRATCH = sys.argv[1]


def start(timeout=timedelta(minutes=30)):
    """Returns the rank, a model and its optimizer."""
    dist.init_process_group("gloo", timeout=timeout)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    log(0)
    return dist.get_rank(), model, optimizer


def train(model, optimizer, step, batch=None):
    """One step: the ranks meet in the backward pass."""
    batch = torch.randn(8, 32) if batch is None else batch
    loss = (model(batch) - batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)  # An accelerator would be at work here.
    log(step + 1)
    return loss


def log(step):
    with open(os.path.join(SCRATCH, f"steps-{dist.get_rank()}"), "a") as file:
        file.write(f"{step} {time.monotonic()} {os.getpid()}\n")


def pause_s(full):
    """How long a pause is: as long as it says, or as short as a first look has it."""
    return min(full, float(os.environ.get("HOLDFAST_PAUSE_S", "inf")))


def compute(seconds):
    """Computes for so long, with random numbers of its own."""
    values, until = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)), time.monotonic() + seconds
    while time.monotonic() < until:
        values = torch.tanh(values @ values)
    return values


def end(model, exact=True):
    """The last line of the script. `exact`: the weights are the same in every run."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    said = f"end {digest.hexdigest()[:16] if exact else 'whenever'}"
    with open(os.path.join(SCRATCH, f"end-{dist.get_rank()}"), "w") as file:
        file.write(f"{said} {time.monotonic()}\n")
    if dist.get_rank() == 0:
        print(said, flush=True)
    dist.destroy_process_group()
