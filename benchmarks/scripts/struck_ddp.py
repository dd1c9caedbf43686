"""A small DDP training that is struck in every way, under any launcher: `struck_ddp.py SCRATCH plain|guard|rejoin|nvrx`. Raises or sleeps when that is ordered.

plain   as one writes it for torchrun: a checkpoint every 10 steps, resumed from if it is there; it knows nothing of Holdfast but how to be struck
guard   Holdfast's lines in place of its own checkpointing
rejoin  the same as a function that may be called again in the process
nvrx    plain, with the lines of NVIDIA's resiliency extension that let its launcher notice a hang
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.chaos.listen import Listener

scratch, kind = Path(sys.argv[1]), sys.argv[2]
checkpoint = scratch / "checkpoint.pt"
orders = Listener(scratch)
torch.set_num_threads(1)


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    log = os.open(scratch / f"steps-{dist.get_rank()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def train(step: int) -> torch.Tensor:
        orders.listen(step)
        x = torch.randn(8, 64)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)  # An accelerator would be at work here; the processors of this machine are left to the launcher.
        os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())
        return loss.detach()

    if kind in ("guard", "rejoin"):
        run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)
        for step in run.steps(1_000_000):
            run.report(loss=train(step))
    else:
        plain(model, optimizer, train)


def plain(model, optimizer, train) -> None:
    monitor, first = None, 0
    if kind == "nvrx":
        import nvidia_resiliency_ext.fault_tolerance as ft

        monitor = ft.RankMonitorClient()
        monitor.init_workload_monitoring()
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, 1_000_000):
        train(step)
        if monitor is not None:
            monitor.send_heartbeat()
        if (step + 1) % 10 == 0 and dist.get_rank() == 0:
            new = checkpoint.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, new)
            new.replace(checkpoint)


if kind in ("guard", "rejoin"):
    import holdfast

holdfast.rejoin(main)() if kind == "rejoin" else main()
