"""A small DDP training that a soak can hurt: SIGUSR1 raises in it, and what it ends with is written bit for bit.

ddp.py DIRECTORY STEPS [STEP_S]: DIRECTORY outlives the ranks and holds how far they are. With a file `hurry` in it, steps take no longer than they must.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float((*sys.argv[3:], 0.01)[0])
rank = int(os.environ["RANK"])
with (directory / "starts").open("a") as starts:
    starts.write(f"{os.environ['HOLDFAST_GENERATION']} {rank} {os.getpid()}\n")


def raise_something(*_: object) -> None:
    # Never the same twice: a fault that comes again in the same place, by its type, would rightly be called permanent.
    raise type("Struck" + secrets.token_hex(6), (RuntimeError,), {})("struck")


signal.signal(signal.SIGUSR1, raise_something)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.2), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=5)
progress = os.open(directory / f"rank-{rank}", os.O_WRONLY | os.O_CREAT, 0o644)
for step in run.steps(steps):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    os.pwrite(progress, f"{step + 1:10}".encode(), 0)
    time.sleep(0.0 if (directory / "hurry").exists() else step_s)
weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
(directory / f"weights-{rank}").write_text(weights)
dist.destroy_process_group()
