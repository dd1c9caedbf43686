"""The training of struck_ddp.py as one writes it for torchft: one replica group of one process. `torchft_ddp.py SCRATCH NUMBER`."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from holdfast.chaos.listen import Listener

scratch, number = Path(sys.argv[1]), int(sys.argv[2])

torch.manual_seed(0)
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
inner = torch.optim.AdamW(model.parameters())


def give() -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": inner.state_dict()}


def take(state: dict[str, object]) -> None:
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), load_state_dict=take, state_dict=give, min_replica_size=1, timeout=timedelta(seconds=10), rank=0,
    world_size=1, store_addr="127.0.0.1", store_port=store.port, replica_id=f"replica_{number}_", hostname="127.0.0.1",
)  # fmt: skip
parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
orders = Listener(scratch, rank=number)
log = os.open(scratch / f"steps-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while manager.current_step() < 1_000_000:
    orders.listen(manager.current_step())
    optimizer.zero_grad()
    x = torch.randn(8, 64)
    loss = (parallel(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    os.write(log, f"{manager.current_step()} {time.monotonic()} {os.getpid()}\n".encode())
