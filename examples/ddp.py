"""DDP with mixed precision and accumulation: `holdfast run --nproc 2 examples/ddp.py`, or the same with torchrun."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

ACCUMULATE = 4

device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)
inputs = torch.randn(2048, 16)
dataset = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True).sin())
loader = DataLoader(dataset, batch_sampler=holdfast.Sampler(dataset, batch_size=16 * dist.get_world_size()), num_workers=2)

model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
run = holdfast.guard(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, save_every=10, checkpoints="checkpoints/ddp")

for x, y in run.steps(loader, epochs=3, accumulate=ACCUMULATE):
    with nullcontext() if run.boundary else model.no_sync():
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device)) / ACCUMULATE
        scaler.scale(loss).backward()
    if run.boundary:
        scaler.unscale_(optimizer)
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        run.report(loss=loss * ACCUMULATE, grad_norm=grad_norm)

if dist.get_rank() == 0:
    print(f"finished at step {run.step}: loss {run.numbers.get('loss', float('nan')):.4f}")
dist.destroy_process_group()
