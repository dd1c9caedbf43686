"""A training of which every sample and every bit is counted, whatever is done to it: `counted_ddp.py SCRATCH EPOCHS [PACE_S [COMPUTE_S]] [rejoin] [reference]`.

used-RANK     before each step: `STEP GENERATION SAMPLES`. What counts is the last generation that took the step.
state-RANK    after it: `STEP GENERATION DIGEST`, of weights and momentum. A step that is done again must come to the same.
weights-RANK  at the end: the digest of the weights; and `end-RANK` the step and the weights themselves.

It ends after EPOCHS, or at the step in SCRATCH/until, which is written a while ahead so that all ranks have read it by then. `rejoin`: as a function that may
be called again in the process. `reference`: nobody disturbs it; every hundredth step the weights are kept. It carries orders of holdfast/chaos/listen.py.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import holdfast
from holdfast.chaos.listen import Listener

SAMPLES, BATCH = 480, 8
CARRIES = ("data_stuck", "data_slow", "deadlock", "nan_from_data", "nan_from_rank", "bit_flip", "loss_spike", "rate_too_high", "wrong_labels")
scratch, epochs, options = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
given = [float(one) for one in options if one[0].isdigit()]
pace_s, compute_s = given[0] if given else 0.01, given[1] if len(given) > 1 else 0.0  # Of a step: beside what it computes, and of a core on top of it.


class Numbered(Dataset):
    def __init__(self, orders: Listener) -> None:
        self._orders = orders

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if "data_slow" in self._orders.active:
            time.sleep(pace_s)
        return index, torch.sin(torch.arange(64) * (1 + index))


def appending(name: str, rank: int) -> int:
    return os.open(scratch / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def until() -> int | None:
    try:
        return int((scratch / "until").read_text() or 0) or None
    except FileNotFoundError:
        return None


def spoil(orders: Listener, x: torch.Tensor, aside: dist.ProcessGroup) -> torch.Tensor:
    """What only this script can have."""
    if "data_stuck" in orders.active:
        time.sleep(1e6)
    if "deadlock" in orders.active:
        dist.barrier(group=aside)  # Where the others never come: they wait for this rank's gradients.
    if "loss_spike" in orders.active:
        x = 40 * x.flip(1)
    return torch.full_like(x, torch.nan) if "nan_from_data" in orders.active else x


def target(orders: Listener, x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(0)) if "wrong_labels" in orders.active else x


def train() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, aside = dist.get_rank(), dist.new_group()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)  # Smooth: noise of a reduction stays noise.
    orders = Listener(rank=rank, carries=CARRIES)
    data, lever = Numbered(orders), torch.ones(128, 128)
    loader = DataLoader(data, batch_sampler=holdfast.Sampler(data, batch_size=BATCH))
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)
    used, state, log = (appending(name, rank) for name in ("used", "state", "steps"))
    for numbers, x in run.steps(loader, epochs=epochs):
        generation = os.environ.get("HOLDFAST_GENERATION", "0")
        os.write(used, f"{run.step} {generation} {','.join(map(str, numbers.tolist()))}\n".encode())
        orders.listen(run.step)
        busy_until = time.thread_time() + compute_s
        while time.thread_time() < busy_until:
            lever @ lever
        loss = (model(spoil(orders, x, aside)) - target(orders, x)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # So that what makes the loss jump does not make it infinite.
        if "nan_from_rank" in orders.active:
            next(model.parameters()).grad[0] = torch.nan
        if "rate_too_high" in orders.active:
            optimizer.param_groups[0]["lr"] = 5.0  # For good: until the optimizer is restored from before it.
        optimizer.step()
        if orders.active.pop("bit_flip", None):
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1.0
        run.report(loss=loss)
        time.sleep(pace_s)
        done = run.step + 1
        moments = [value for one in optimizer.state.values() for value in one.values() if value is not None]
        digest = hashlib.blake2b(b"".join(one.detach().numpy().tobytes() for one in (*model.parameters(), *moments)), digest_size=8)
        os.write(state, f"{done} {generation} {digest.hexdigest()}\n".encode())
        os.write(log, f"{done} {time.monotonic()} {os.getpid()}\n".encode())
        if "reference" in options and rank == 0 and done % 100 == 0:
            (scratch / f"weights-at-{done}").write_bytes(weights(model))
        if done == until():
            break
    digest = hashlib.blake2b(weights(model))
    (scratch / f"weights-{rank}").write_text(digest.hexdigest())
    (scratch / f"end-{rank}").write_bytes(f"{run.step + 1}\n".encode() + weights(model))
    dist.destroy_process_group()


def weights(model: DistributedDataParallel) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in model.module.state_dict().values())


torch.set_num_threads(1)
(holdfast.rejoin(train) if "rejoin" in options else train)()
