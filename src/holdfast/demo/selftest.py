"""What `holdfast selftest` trains, twice: once in peace and once through faults. Both must end with the same weights, bit for bit.

NCCL and one GPU a rank where `--gpu` is given, gloo on the CPU elsewhere. Rank 0 writes a digest of the final weights to `--digest`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--digest", type=Path, required=True)
    options = parser.parse_args()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if options.gpu else torch.device("cpu")
    if options.gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if options.gpu else "gloo")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    layers = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)).to(device)
    model = DistributedDataParallel(layers, device_ids=[local_rank] if options.gpu else None)
    optimizer = torch.optim.AdamW(model.parameters())
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=options.steps // 12)
    for _ in run.steps(options.steps):
        x = torch.randn(32, 256, device=device)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss=loss)
    if rank == 0:
        digest = hashlib.blake2b()
        for name, tensor in sorted(layers.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().numpy().tobytes())
        options.digest.write_text(digest.hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
