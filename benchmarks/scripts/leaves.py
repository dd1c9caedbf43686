"""A training that leaves its loop in one of many ways: `leaves.py SCRATCH WAY`. WAY `none` comes to its end.

It trains TOTAL steps, and the first process of each rank leaves after LEAVE of them. What goes on after that, in another process, comes to the end.

done-RANK     a line for each step of which all work is done: the count of `run.step` that it makes
end-RANK      at the end: how many steps the scheduler has counted, and the digest of weights, momentum and running averages
"""

import hashlib
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import holdfast

TOTAL, LEAVE, BATCH = 60, 37, 4
AT_BOTTOM = ("break_bottom", "quick", "scaler", "two_optimizers", "group_end", "uneven", "bar", "bar_kept", "epochs")
scratch, way = Path(sys.argv[1]), sys.argv[2]
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
kind, _, data = way.partition("@")
LATER = scratch / f"left-{rank}"
leaves = kind != "none" and not LATER.exists()
LATER.touch()
pace_s = 0.0 if kind.startswith("quick") else 0.006


class Samples(Dataset):
    """Samples with noise that is drawn when they are read, as augmentation does."""

    def __len__(self) -> int:
        return TOTAL * BATCH * 2

    def __getitem__(self, index: int) -> torch.Tensor:
        if kind == "data_raises" and leaves and index == LEAVE * BATCH * world + 1:
            raise ValueError("this sample cannot be read")
        return torch.sin(torch.arange(8.0) * (index + 1)) + random.random() * torch.rand(8)


class Average:
    """A moving average of the weights, as an object of the script's own."""

    def __init__(self, model: nn.Module) -> None:
        self.values = {name: value.clone() for name, value in model.state_dict().items()}

    def update(self, model: nn.Module) -> None:
        for name, value in model.state_dict().items():
            self.values[name].mul_(0.9).add_(value, alpha=0.1) if value.is_floating_point() else self.values[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


class Left(Exception):
    pass


class Bar:
    """What progress bars do: an object that is kept, with a generator of its own around what it is given."""

    def __init__(self, items: Any) -> None:
        self.items, self.total = items, len(items)

    def __iter__(self) -> Iterator[Any]:
        yield from self.items


if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(5)
random.seed(5 + rank)
norm = [nn.BatchNorm1d(16)] if kind != "forward_no_norm" else []
plain = nn.Sequential(nn.Linear(8, 16), *norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 8))
model = DistributedDataParallel(plain) if world > 1 and kind != "uneven" else plain
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.8)
pieces: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "average": Average(plain)}
critic = nn.Linear(8, 1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
if kind == "two_optimizers":
    pieces |= {"critic": critic, "critic_optimizer": critic_optimizer}
scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaler", init_scale=4.0)
if kind == "scaler":
    pieces["scaler"] = scaler
torch.manual_seed(5 + rank)
accumulate = 2 if kind in ("group_middle", "group_end") else 1


def make_work() -> tuple[Any, dict[str, Any]]:
    samples = Samples()
    if data == "sampler" or accumulate > 1:
        ordered = holdfast.Sampler(samples, batch_size=BATCH * world, seed=3, shuffle=False)
        return DataLoader(samples, batch_sampler=ordered), {"accumulate": accumulate, "epochs": 9}
    if data == "workers":
        sampler = DistributedSampler(samples, num_replicas=world, rank=rank, seed=3)
        return DataLoader(samples, batch_size=BATCH, sampler=sampler, num_workers=1), {"epochs": 9}
    if data == "loader" or kind == "data_raises":
        sampler = DistributedSampler(samples, num_replicas=world, rank=rank, shuffle=False)
        return DataLoader(samples, batch_size=BATCH, sampler=sampler), {"epochs": 9}
    return TOTAL, {}


run = holdfast.guard(**pieces, save_every=30)  # So that one save lies before.
done = (scratch / f"done-{rank}").open("a", buffering=1)


def steps() -> Any:
    work, options = make_work()
    return run.steps(work, **options)


def at(place: str) -> None:
    """Here this way leaves, if its time has come. `top`: LEAVE steps are done; elsewhere one more is under way."""
    due = leaves and run.step == LEAVE - (0 if place == "top" else 1)
    if due and kind in (f"raise_{place}", "uncaught" if place == "bottom" else "", "uncaught_top" if place == "top" else ""):
        raise Left
    if due and kind == f"exit_{place}":
        sys.exit(0)
    if due and kind == f"interrupt_{place}":
        raise KeyboardInterrupt
    if due and place == "forward" and kind == "forward_no_norm":
        raise Left


def due(place: str = "bottom") -> bool:
    own = 1 if kind == "uneven" and rank == 1 else 0
    return leaves and run.step >= LEAVE + own - (0 if place == "top" else 1)


def train(item: Any) -> bool:
    """The work of a step; whether the loop is to be left in the middle of it."""
    batch = item if isinstance(item, torch.Tensor) else torch.sin(torch.arange(8.0 * BATCH).view(BATCH, 8) * (item + 1 + rank)) + torch.rand(BATCH, 8)
    at("top")
    loss = model(batch).square().mean() / accumulate
    at("forward")
    scaler.scale(loss).backward()
    if kind == "two_optimizers":
        critic_optimizer.zero_grad()
        critic(batch).square().mean().backward()
        critic_optimizer.step()
    if not run.boundary:
        return kind == "group_middle" and due()
    at("backward")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    at("middle")
    if kind == "break_middle" and due():
        return True
    scheduler.step()
    if kind == "break_before_average" and due():
        return True
    pieces["average"].update(plain)
    time.sleep(pace_s)
    done.write(f"{run.step + 1}\n")
    at("bottom")
    return False


def is_last() -> bool:
    """Whether a loop over a loader, which knows nothing of TOTAL, is to end."""
    return run.step + 1 >= TOTAL and run.boundary


def plain_loop(items: Any) -> None:
    for item in items:
        if kind in ("break_top", "quick_top") and due("top"):
            break
        if train(item) or (due() and run.boundary and kind in AT_BOTTOM):
            break
        if is_last() and (data or accumulate > 1 or kind == "data_raises"):
            break


def by_return(items: Any) -> int:
    for item in items:
        if kind == "return_top" and due("top"):
            return run.step
        train(item)
        if kind == "return_bottom" and due():
            return run.step
    return -1


def by_next(items: Any) -> None:
    while True:
        item = next(items, None)
        if item is None:
            return
        train(item)
        if kind in ("next_kept", "next_group_gone", "next_evaluates", "deleted", "second_call", "next_moved") and due():
            return


def finish() -> None:
    if world > 1 and dist.is_initialized():
        dist.destroy_process_group()


def catching(loop: Callable[[], None]) -> None:
    try:
        loop()
    except (Left, KeyboardInterrupt, ValueError):
        if kind.startswith("uncaught"):
            raise


def in_thread() -> None:
    thread = threading.Thread(target=lambda: [train(item) for item in itertools.islice(steps(), LEAVE if leaves else None)])
    thread.start()
    thread.join()


items: Any = None
if kind in ("return_top", "return_bottom"):
    by_return(steps())
elif kind.startswith("next_") or kind in ("deleted", "second_call"):
    items = steps()
    by_next(items)
    if kind == "deleted":
        del items
    if kind == "second_call" and leaves:
        again = run.steps(run.step + 1 if due() else TOTAL)  # Its iterator is made, and used for nothing but a look.
        next(again, None)
    if kind == "next_group_gone":
        finish()
    if kind == "next_evaluates":
        model.eval()
        with torch.no_grad():
            plain(torch.ones(16, 8))
        model.train()
    if kind == "next_moved" and leaves:
        optimizer.step()  # Something is trained after the loop: what is there now is no step of it any more.
        scheduler.step()
        scheduler.step()
elif kind == "islice":
    for item in itertools.islice(steps(), LEAVE if leaves else None):
        train(item)
elif kind == "takewhile":
    for item in itertools.takewhile(lambda _: not due("top"), steps()):
        train(item)
elif kind == "zip_bottom":
    for _, item in zip(range(LEAVE if leaves else TOTAL), steps(), strict=False):
        train(item)
elif kind == "zip_top":
    for item, _ in zip(steps(), range(LEAVE if leaves else TOTAL), strict=False):
        train(item)
elif kind == "enumerated":
    for index, item in enumerate(steps()):
        train(item)
        if leaves and index + 1 >= LEAVE:
            break
elif kind == "bar":
    plain_loop(Bar(steps()))
elif kind == "bar_kept":
    items = Bar(steps())
    plain_loop(items)
elif kind == "thread":
    in_thread()
elif kind == "epochs":
    for _ in range(2):
        plain_loop(steps())
        leaves = False
else:
    catching(lambda: plain_loop(steps()))
hasher = hashlib.sha256()
for value in (*model.state_dict().values(), *pieces["average"].values.values(), *(inner for one in optimizer.state.values() for inner in one.values())):
    hasher.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
(scratch / f"end-{rank}").write_text(f"{scheduler.last_epoch} {hasher.hexdigest()}")
if kind != "next_group_gone":
    finish()
