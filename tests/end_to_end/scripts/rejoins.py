"""A DDP training that rejoins and can be hurt, of which every bit and every sample is accounted for: rejoins.py DIRECTORY STEPS STEP_S.

SIGUSR1 lets it raise in its next step; SIGUSR2 lets it swallow whatever is raised from the next step on, for good. A file slow-N makes it slow on
node-N; a file die-R-PLACE lets rank R kill itself when it comes by that place the next time. Dropout, moments, a scheduler and the order
of the data are all part of what must come out the same: each rank writes down the samples it used in a step and a checksum of what it then had.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import holdfast

directory, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
SAVE_EVERY = 50
deaf = struck = False
slowed = directory / f"slow-{os.environ.get('HOLDFAST_NODE', '').rpartition('node-')[2]}"


def may_die(place: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (directory / f"die-{os.environ['RANK']}-{place}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Samples(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> int:
        may_die("loader")
        return index


class Halfway(nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        may_die("forward")
        return batch


class InTwoParts(torch.optim.AdamW):
    """With a moment at which some parameters are of the new step and the others are not."""

    def _init_group(self, group: dict[str, Any], *rest: Any) -> Any:
        if group is self.param_groups[-1]:
            may_die("optimizer")
        return super()._init_group(group, *rest)


class Saved:
    """A piece with nothing in it, whose state is asked for after every step, and first of all by a save if there is one."""

    run: Any = None

    def state_dict(self) -> dict[str, Any]:
        if self.run is not None and self.run.step % SAVE_EVERY == 0:
            may_die("save")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


samples = Samples()
saved = Saved()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), Halfway(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = InTwoParts([{"params": list(net[0].parameters())}, {"params": [*net[1].parameters(), *net[-1].parameters()]}], lr=0.01)
net.register_load_state_dict_post_hook(lambda *_: may_die("rejoin"))


def strike(*_: object) -> None:
    global struck
    struck = True  # Raised in the loop's own code: in ours, as in a save, it would be taken for a failure of ours, which ends no run.


def go_deaf(*_: object) -> None:
    global deaf
    deaf = True


def features(ids: torch.Tensor) -> torch.Tensor:
    return torch.sin(ids[:, None].float() * torch.arange(1, 17))


def pause() -> None:
    if struck:
        # Never the same twice: a fault that comes again in the same place, by its type, would rightly be called permanent.
        raise type("Struck" + secrets.token_hex(6), (ValueError,), {})("struck")
    while deaf:
        (directory / "deaf").touch()
        with contextlib.suppress(BaseException):
            time.sleep(60.0)
    time.sleep(0.2 if slowed.exists() else step_s)


@holdfast.rejoin
def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    loader = torch.utils.data.DataLoader(samples, batch_sampler=holdfast.Sampler(samples, batch_size=8 * dist.get_world_size()))
    torch.manual_seed(rank)
    saved.run = None
    saved.run = run = holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler, saved=saved, save_every=SAVE_EVERY)
    used = os.open(directory / f"used-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for ids in run.steps(loader, epochs=1 << 20):
        pause()
        loss = model(features(ids)).square().mean()
        # Called when the sum over the ranks has begun, and before it is waited for.
        loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(functools.partial(may_die, "all-reduce")))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        may_die("stepped")
        run.report(loss=loss)
        # Not the running averages: DDP takes rank 0's, and they are gone with it.
        moments = [value for state in optimizer.state.values() for value in state.values()]
        values = [*(one.detach() for one in net.parameters()), *moments, torch.get_rng_state()]
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()
        who = f"{os.environ.get('HOLDFAST_GENERATION', 0)} {os.getpid()}"
        os.write(used, f"{run.step + 1} {who} {digest} {','.join(map(str, ids.tolist()))}\n".encode())
        if run.step + 1 == steps:
            break
    dist.destroy_process_group()


signal.signal(signal.SIGUSR1, strike)
signal.signal(signal.SIGUSR2, go_deaf)
train()
