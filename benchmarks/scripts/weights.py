"""A training run whose result can be compared bit for bit: at its end every rank writes a digest of the weights and of its random state."""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist

import holdfast

scratch, total = sys.argv[1], int(sys.argv[2])

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Dropout(0.1), torch.nn.Linear(128, 64))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(1000 + rank)  # Each rank draws its own data.
run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)
log = os.open(os.path.join(scratch, f"steps-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in run.steps(total):
    x = torch.randn(8, 64)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        # Not DistributedDataParallel: it sorts its buckets anew after the first step of a process, and with more than two ranks another order adds up
        # to another last bit. A process that starts in the middle of a run would then differ from one that went through, whoever restarts it.
        dist.all_reduce(parameter.grad)
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.02)
    os.write(log, f"{step + 1} {time.monotonic()} {os.getpid()}\n".encode())

digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
digest.update(torch.get_rng_state().numpy().tobytes())
with open(os.path.join(scratch, f"result-{rank}.new"), "w") as file:
    file.write(digest.hexdigest())
os.replace(os.path.join(scratch, f"result-{rank}.new"), os.path.join(scratch, f"result-{rank}"))
dist.destroy_process_group()
