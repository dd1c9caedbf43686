"""Several ranks train together, and one of them meets something: what, and which, is in JOB."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

WHAT, WHOM = json.loads(os.environ["JOB"])  # Not from the command line, which a log may quote.
WHOM = int(WHOM)


def prepare(step):
    if WHAT == "key":
        return {"train": 1}["validation"]
    if WHAT == "none":
        return None.shape
    if WHAT == "shape":
        return nn.Linear(16, 4)(torch.randn(2, 9))
    if WHAT == "index":
        return torch.arange(5)[step]
    if WHAT == "missing":
        with open(f"/data/shards/shard_{step:05d}.bin", "rb") as file:
            return file.read()
    if WHAT == "import":
        return importlib.import_module("apex_not_here")
    if WHAT == "json":
        return json.loads('{"text": "an unfinished')
    if WHAT == "memory":
        return torch.empty(1 << 46)
    if WHAT == "crash":
        ctypes.string_at(0)
    if WHAT == "abort":
        os.abort()
    return None


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    print(f"[rank {rank}] started", flush=True)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        if rank == WHOM and step == 25:
            prepare(step)
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(f"[rank {rank}] step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    print("Training completed.", flush=True)


if __name__ == "__main__":
    main()
