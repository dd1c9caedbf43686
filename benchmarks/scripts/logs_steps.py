"""A training that keeps a log of its own: when each process enters its loop, and when it finishes each step. With --plain it knows nothing of Holdfast.

--die GENERATION:STEP:RANK kills a rank once it has finished that step, may be given often; the log says when.
"""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("scratch")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--step-s", type=float, default=0.05)
parser.add_argument("--save-every", type=int, default=25)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--die", action="append", default=[])
asked = parser.parse_args()

dist.init_process_group("gloo")
rank, generation = dist.get_rank(), int(os.environ.get("HOLDFAST_GENERATION", "1"))
log = os.open(os.path.join(asked.scratch, f"log-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(what: str, step: int) -> None:
    os.write(log, f"{generation} {what} {step} {time.time()}\n".encode())


torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
if asked.plain:
    steps = iter(range(asked.steps))
else:
    import holdfast

    steps = iter(holdfast.guard(model=model, optimizer=optimizer, save_every=asked.save_every).steps(asked.steps))

step = next(steps, None)
if step is not None:
    note("loop", step)
while step is not None:
    loss = model(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(asked.step_s)  # An accelerator would be at work here.
    note("step", step + 1)
    if f"{generation}:{step + 1}:{rank}" in asked.die:
        note("dies", step + 1)
        os.kill(os.getpid(), signal.SIGKILL)
    step = next(steps, None)
dist.destroy_process_group()
