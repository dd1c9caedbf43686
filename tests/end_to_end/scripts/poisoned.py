"""A training whose weights turn to NaN just before a save, once, and that dies right after it: poisoned.py DIRECTORY STEPS NAN_AT STEP_S."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import holdfast

directory, steps, nan_at, step_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
generation = int(os.environ["HOLDFAST_GENERATION"])
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, save_every=5)
with (directory / "starts").open("a") as starts:
    starts.write(f"{generation} {run.step}\n")
for step in run.steps(steps):
    if generation == 1 and step == nan_at:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.randn(4, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.report(loss=loss)
    if generation == 1 and step + 1 == nan_at:
        with torch.no_grad():
            model.weight.div_(0.0).mul_(0.0)  # As an overflow does it: infinite first.
    time.sleep(step_s)
torch.save(model.state_dict(), directory / "weights.pt")
