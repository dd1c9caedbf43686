"""A training of a sharded model (FSDP2) that rejoins and can be hurt, of which every bit and every sample is accounted for: shards.py DIRECTORY STEPS STEP_S.

SIGUSR1 lets it raise in its next step; SIGUSR2 lets it die right before it would save, when the others have what they need to. A file `dies` in the directory
lets the rank in it die as soon as it is started anew. Its seed is set outside of the function, and its model is made inside: a rank that lives on must come to
the same one as a rank that is new. With WHERE=outside in its environment the model is made outside, and can be sharded once only. With PARTS=2 the state is
in two parts, each of which is held by every second rank (HSDP).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
struck = doomed = False
SAVE_EVERY = 20
samples = torch.arange(240)
torch.manual_seed(0)
torch.set_num_threads(1)


def build() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.GELU()), nn.Sequential(nn.Linear(32, 32), nn.GELU()), nn.Linear(32, 4))


outside = build() if os.environ.get("WHERE") == "outside" else None


def strike(*_: object) -> None:
    global struck
    struck = True


def doom(*_: object) -> None:
    global doomed
    doomed = True


def die_if_told(rank: int) -> None:
    told = directory / "dies"
    if told.exists() and told.read_text() == str(rank):
        told.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def features(ids: torch.Tensor) -> torch.Tensor:
    return torch.sin(ids[:, None].float() * torch.arange(1, 17))


def pause() -> None:
    if struck:
        # Never the same twice: a fault that comes again in the same place, by its type, would rightly be called permanent.
        raise type("Struck" + secrets.token_hex(6), (ValueError,), {})("struck")
    time.sleep(step_s)


@holdfast.rejoin
def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    die_if_told(rank)
    parts = int(os.environ.get("PARTS", 0))
    mesh = (
        init_device_mesh("cpu", (dist.get_world_size() // parts, parts), mesh_dim_names=("replicate", "shard")) if parts
        else init_device_mesh("cpu", (dist.get_world_size(),))
    )  # fmt: skip
    model = outside or build()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    loader = torch.utils.data.DataLoader(samples, batch_sampler=holdfast.Sampler(samples, batch_size=8 * dist.get_world_size()))
    torch.manual_seed(rank)
    run = holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler, save_every=SAVE_EVERY)
    used = os.open(directory / f"used-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for ids in run.steps(loader, epochs=1 << 20):
        pause()
        loss = model(features(ids)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.report(loss=loss)
        moments = [value for state in optimizer.state.values() for value in state.values()]
        parts = [one.to_local() if hasattr(one, "to_local") else one for one in (*(one.detach() for one in model.parameters()), *moments)]
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in (*parts, loss.detach(), torch.get_rng_state()))).hexdigest()
        who = f"{os.environ.get('HOLDFAST_GENERATION', 0)} {os.getpid()}"
        os.write(used, f"{run.step + 1} {who} {digest} {','.join(map(str, ids.tolist()))}\n".encode())
        if run.step + 1 == steps:
            break
        if doomed and (run.step + 1) % SAVE_EVERY == 0:
            time.sleep(0.2)  # The others save meanwhile, and wait in the next step.
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(used)
    dist.destroy_process_group()


signal.signal(signal.SIGUSR1, strike)
signal.signal(signal.SIGUSR2, doom)
train()
