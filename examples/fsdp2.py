"""FSDP2: `holdfast run --nproc 2 examples/fsdp2.py`, or the same with torchrun. Each rank saves the part of the model it holds."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast

kind = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
mesh = init_device_mesh(kind, (dist.get_world_size(),), mesh_dim_names=("shard",))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)), nn.Linear(32, 1)).to(kind)
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = holdfast.guard(model=model, optimizer=optimizer, save_every=20, checkpoints="checkpoints/fsdp2")

torch.manual_seed(dist.get_rank())
for _ in run.steps(100):
    x = torch.randn(64, 32, device=kind)
    loss = nn.functional.mse_loss(model(x), x.mean(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)

if dist.get_rank() == 0:
    print(f"finished at step {run.step}: loss {run.numbers.get('loss', float('nan')):.4f}")
dist.destroy_process_group()
