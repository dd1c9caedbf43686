"""A training script as one writes it for torchrun: DDP, a checkpoint every 10 steps, resumed from if it is there. It knows nothing of Holdfast."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

scratch = sys.argv[1]
checkpoint = os.path.join(scratch, "checkpoint.pt")

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)))
optimizer = torch.optim.AdamW(model.parameters())

first = 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]

log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in range(first, 1_000_000):
    x = torch.randn(8, 64)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)  # An accelerator would be at work here; the processors of this machine are left to the launcher.
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
    if (step + 1) % 10 == 0 and rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, checkpoint + ".new")
        os.replace(checkpoint + ".new", checkpoint)
