"""A training whose saves take 6 MB: saves_much.py DIRECTORY STEPS EVERY. A file `hurry` beside its progress lets it wait for nothing any more."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import holdfast

directory, steps, every = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Linear(700, 700)
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, save_every=every)
progress = os.open(directory / "rank-0", os.O_WRONLY | os.O_CREAT, 0o600)
for step in run.steps(steps):
    model(torch.randn(4, 700)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    os.pwrite(progress, f"{step + 1:10}".encode(), 0)
    if not (directory / "hurry").exists():
        time.sleep(0.05)
