"""One finished step of data-parallel training, and when it was finished."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

began = time.monotonic()
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
print(f"step of rank {dist.get_rank()} of {dist.get_world_size()} finished at {time.monotonic():.6f}, script ran {time.monotonic() - began:.4f}", flush=True)
if os.environ.get("STAY"):
    time.sleep(600)
dist.destroy_process_group()
