"""Rank 0 evaluates by generation: one token after the other, each a short forward pass and a short wait."""

import time

import torch
from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast


def generate(net, seconds):
    text, until = [torch.zeros(1, 32)], time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            text.append(net(text[-1]).tanh())
            time.sleep(0.02)
    return text


rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        print(len(generate(model.module, pause_s(45))), "tokens", flush=True)
end(model)
