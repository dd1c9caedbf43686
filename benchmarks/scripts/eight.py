"""Workers who mostly wait, as they would for their GPUs, and save every so many steps or not at all. The agent beside them is what is measured."""

import os
import sys
import time

import torch

import holdfast

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=int(sys.argv[2]))
log = os.open(os.path.join(sys.argv[1], f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in run.steps(1_000_000):
    x = torch.randn(8, 64)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.05)
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
