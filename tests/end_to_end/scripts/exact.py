"""A training whose whole state is known at every step, so that what a rank is given back can be compared bit for bit: exact.py DIRECTORY STEP_S.

Every tensor is a function of step and rank. Some change with every step, some every few, one never: checkpoints refer to chunks of older ones. A rank that is
given anything else than the state of the step it is told writes down what was wrong and leaves with code 99. With `look-at-all` in DIRECTORY, every complete
checkpoint is read and compared too, before training goes on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import holdfast
from holdfast.checkpoint.found import list_complete
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.checkpoint.read import restore

WRONG = 99
SAVE_EVERY, KEEP = 4, 3
NEVER = 1 << 40
ALIKE = {"wide": (180_000, 1), "slow": (90_000, 5), "small": (9_000, 1)}  # Elements, and every how many steps they change: the same on every rank.
OWN = {"first": (260_000, 1), "second": (150_000, 2), "third": (80_000, 11), "fixed": (130_000, NEVER), "bias": (5_000, 1), "one": (1, 1)}

directory, step_s = Path(sys.argv[1]), float(sys.argv[2])
rank, world_size, generation = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["HOLDFAST_GENERATION"])
restore_name = os.environ["HOLDFAST_RESTORE"]


def note(name: str, line: str) -> None:
    with (directory / name).open("a") as file:
        file.write(f"{line}\n")


def expect(truth: bool, what: str) -> None:
    if not truth:
        note("wrong", f"generation {generation}, rank {rank}, told {restore_name!r}: {what}")
        print(f"WRONG: {what}", flush=True)
        os._exit(WRONG)


note("starts", f"{generation} {rank} {os.getpid()}")
dist.init_process_group("gloo")


class Alike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, (size, _) in ALIKE.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))


model = nn.parallel.DistributedDataParallel(Alike())
own: dict[str, object] = {name: torch.zeros(size) for name, (size, _) in OWN.items()}
patterns = {name: (torch.arange(size) * (3 + number) % 65_521).float() for number, (name, (size, _)) in enumerate((ALIKE | OWN).items())}


def tensors() -> list[tuple[str, torch.Tensor, int, int]]:
    """Name, tensor, period, and whose it is."""
    alike = [(name, getattr(model.module, name).data, period, 0) for name, (_, period) in ALIKE.items()]
    mine = [(name, own[name], period, 1 + rank) for name, (_, period) in OWN.items()]
    return [*alike, *mine]  # type: ignore[list-item]


def offset(name: str, period: int, whose: int, step: int) -> float:
    """Below a million, so that every sum is exact in float32; not the same for two of the steps of a run."""
    return float((step // period * 7 + whose * 104_729 + len(name) * 15_485_863) % 1_000_003)


def become(step: int) -> None:
    for name, tensor, period, whose in tensors():
        torch.add(patterns[name], offset(name, period, whose, step), out=tensor)
    own["step"], own["rank"] = step, rank


def expect_state(step: int, what: str) -> None:
    """Every bit of it."""
    for name, tensor, period, whose in tensors():
        right = patterns[name] + offset(name, period, whose, step)
        same = tensor.shape == right.shape and torch.equal(tensor.view(torch.int32), right.view(torch.int32))
        expect(same, f"{what}: {name} is not that of step {step}: it begins with {tensor[:3].tolist()}, expected {right[:3].tolist()}")
    expect((own["step"], own["rank"]) == (step, rank), f"{what}: step and rank are {own['step']} and {own['rank']}, expected {step} and {rank}")


def steps_done() -> list[int]:
    """By rank, the furthest it ever came."""
    return [int((directory / f"done-{one}").read_text() or 0) if (directory / f"done-{one}").exists() else 0 for one in range(world_size)]


become(12_345_678 if restore_name else 0)  # What is not given back is noticed.
run = holdfast.guard(model=model, own=own, save_every=SAVE_EVERY, keep=KEEP)
told = parse_directory_name(restore_name) if restore_name else (0, 0)
expect(told is not None and run.step == told[0], f"the run begins with step {run.step}")
expect_state(run.step, "what was restored")
expect(run.step <= min(steps_done()), f"step {run.step} was restored, and the ranks had done {steps_done()}")
everybody = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
dist.all_gather(everybody, torch.tensor([run.step]))
expect({int(one) for one in everybody} == {run.step}, f"the ranks begin with steps {[int(one) for one in everybody]}")
if (directory / "look-at-all").exists():
    for found in list_complete(Path(os.environ["HOLDFAST_CHECKPOINTS"])):
        become(12_345_678)
        restore(found.path, {"model": model, "own": own}, rank=rank, world_size=world_size)
        expect_state(found.step, f"checkpoint {found.name}")
        note("looked-at", f"{generation} {rank} {found.name}")
    become(run.step)
    dist.barrier()
note("restored", f"{generation} {rank} {run.step} {restore_name or 'nothing'}")
progress, done = (os.open(directory / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT, 0o600) for name in ("rank", "done"))
furthest, first = steps_done()[rank], run.step
together = torch.zeros(1)
for step in run.steps(1 << 40):
    if step == first > 0:
        before = torch.get_rng_state()
        torch.manual_seed(step * world_size + rank)
        expect(torch.equal(before, torch.get_rng_state()), "the random numbers do not go on where they were")
    dist.all_reduce(together)
    become(step + 1)
    torch.manual_seed((step + 1) * world_size + rank)
    os.pwrite(progress, f"{generation:10} {step + 1:10}".encode(), 0)
    if step + 1 > furthest:
        furthest = step + 1
        os.pwrite(done, f"{furthest:10}".encode(), 0)
    time.sleep(step_s)
dist.destroy_process_group()  # torch aborts now and then at the end of a process that leaves its gloo group as it is.
