"""Two trainings in one script, each with a guard and a loop of its own; rank 0 takes a while between them."""

import torch
from _training import PAUSE_AT, STEPS, compute, end, pause_s, start, train
from torch.nn.parallel import DistributedDataParallel

import holdfast

rank, teacher, optimizer = start()
run = holdfast.guard(model=teacher, optimizer=optimizer)
for step in run.steps(PAUSE_AT):
    train(teacher, optimizer, step)
if rank == 0:
    compute(pause_s(40))
torch.manual_seed(1)
student = DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(student.parameters(), lr=1e-2)
run = holdfast.guard(model=student, optimizer=optimizer)
for step in run.steps(STEPS):
    train(student, optimizer, step)
end(student)
