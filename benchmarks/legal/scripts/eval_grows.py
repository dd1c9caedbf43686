"""Each evaluation takes longer than all before it; the last rank makes them."""

import torch.distributed as dist
from _training import STEPS, compute, end, pause_s, start, train

import holdfast

EVALUATIONS_S = {60: 5, 100: 15, 140: 40, 190: 80}

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step in EVALUATIONS_S and rank == dist.get_world_size() - 1:
        compute(pause_s(EVALUATIONS_S[step]))
end(model)
