"""A training that goes wrong as it is told: `kept steps step_s how`, where `how` is JSON.

    poisoned    samples that are NaN
    bad_from    the node on which rank 1 begins computes NaN from this step on, after the gradients were averaged: on its own ranks alone
    flips_at    a parameter of rank 1 flips in this step, once
    rate        the learning rate of plain gradient descent; above 2 it diverges, and sooner or later is not finite

Each rank writes down which samples it used in which step, and rank 0 what it ended with. With a file `hurry` in `kept`, steps take no longer than
they must.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import holdfast

kept, steps, step_s, how = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])
BATCH = 8
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, generation = dist.get_rank(), os.environ["HOLDFAST_GENERATION"]
node = next(part for part in Path(os.environ["HOLDFAST_SCRATCH"]).parts if part.startswith("node-"))
poisoned = set(how.get("poisoned", ()))
bad_node = kept / "bad_node"
if "bad_from" in how and (rank, generation) == (1, "1"):
    bad_node.write_text(node)


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return steps * BATCH

    def __getitem__(self, number):
        x = torch.ones(4) if "rate" in how else torch.randn(4, generator=torch.Generator().manual_seed(number))
        return (x * float("nan") if number in poisoned else x), number


model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=how.get("rate", 0.05) / 8)
scale = holdfast.tune("scale", 1.0)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=5)
sampler = holdfast.Sampler(Samples(), batch_size=BATCH, seed=3, resize=True)
with (kept / f"used-{rank}").open("a") as used, (kept / "starts").open("a") as starts:
    print(generation, run.step, rank, node, file=starts, flush=True)
    for x, numbers in run.steps(DataLoader(Samples(), batch_sampler=sampler)):
        time.sleep(0.0 if (kept / "hurry").exists() else step_s)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        (scale * loss * run.weight).backward()
        if "bad_from" in how and run.step >= how["bad_from"] and bad_node.read_text() == node:
            next(model.parameters()).grad[0] = float("nan")
        optimizer.step()
        if run.step == how.get("flips_at") and (rank, generation) == (1, "1"):
            with torch.no_grad():
                next(model.parameters())[0, 0] += 1e-3
        run.report(loss=loss.detach())
        print(generation, run.step + 1, float(loss.detach()), *numbers.tolist(), file=used, flush=True)
if rank == 0:
    torch.save(model.module.state_dict(), kept / "weights.pt")
dist.destroy_process_group()  # torch aborts now and then at the end of a process that leaves its gloo group as it is.
