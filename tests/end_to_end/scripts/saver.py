"""A training that saves through memory and can be told to die right after a save is sealed: saver.py DIRECTORY STEPS DIE_AT STEP_S."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import holdfast

directory, steps, die_at, step_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
generation = int(os.environ["HOLDFAST_GENERATION"])
torch.manual_seed(0)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)
with (directory / "starts").open("a") as starts:
    starts.write(f"{generation} {run.step} {os.getpid()}\n")
progress = os.open(directory / "step", os.O_WRONLY | os.O_CREAT, 0o600)
for step in run.steps(steps):
    if step == die_at and generation == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.randn(4, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    os.pwrite(progress, f"{step + 1:10}".encode(), 0)
    time.sleep(step_s)
torch.save(model.state_dict(), directory / "weights.pt")
