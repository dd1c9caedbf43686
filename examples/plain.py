"""A plain loop: `holdfast run examples/plain.py`, or just `python examples/plain.py`. Kill it and start it again: it goes on."""

import torch
from torch import nn

import holdfast

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=50, checkpoints="checkpoints/plain")

for step in run.steps(500):
    x = torch.randn(64, 16)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)

print(f"finished at step {run.step}")
