"""The same as rejoining_ddp.py with a model of which each rank holds a part: survivors keep their processes, and all go back to the newest save."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast

scratch = sys.argv[1]


@holdfast.rejoin
def train() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)

    log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in run.steps(1_000_000):
        x = torch.randn(8, 64)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
        time.sleep(0.02)  # An accelerator would be at work here; the processors of this machine are left to the launcher.
        os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())


train()
