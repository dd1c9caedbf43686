"""Two models with an optimizer each, as in a GAN; a hook of one optimizer sleeps, and later one in the backward pass."""

import time

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train
from torch.nn.parallel import DistributedDataParallel

import holdfast

calls = 0


def after_step(optimizer, arguments, keywords):
    global calls
    calls += 1
    if calls == PAUSE_AT and rank == 0:
        time.sleep(pause_s(35))


def on_gradient(gradient):
    if calls == PAUSE_AT + 40 and rank == 0:
        time.sleep(pause_s(25))


rank, generator, first = start()
judge = DistributedDataParallel(torch.nn.Linear(32, 1))
second = torch.optim.SGD(judge.parameters(), lr=1e-2)
second.register_step_post_hook(after_step)
judge.module.weight.register_hook(on_gradient)
run = holdfast.guard(generator=generator, judge=judge, first=first, second=second)
for step in run.steps(STEPS):
    batch = torch.randn(8, 32)
    loss = judge(batch).mean() - judge(generator.module(batch).detach()).mean()
    second.zero_grad()
    loss.backward()
    second.step()
    train(generator, first, step, batch)
end(generator)
