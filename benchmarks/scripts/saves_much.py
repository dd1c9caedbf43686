"""A training whose saves take 6 MB: saves_much.py DIRECTORY STEPS EVERY. It writes down each step that it has finished."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

directory, steps, every = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Linear(700, 700)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
run = holdfast.guard(model=model, optimizer=optimizer, save_every=every)
log = os.open(os.path.join(directory, f"steps-{os.environ['RANK']}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in run.steps(steps):
    x = torch.randn(4, 700)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.05)
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
