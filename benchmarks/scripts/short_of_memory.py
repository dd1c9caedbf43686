"""A training whose memory goes with its micro-batch: short_of_memory.py SCRATCH STEPS LIMIT_BYTES   under `holdfast run`.

On a GPU the process may have LIMIT_BYTES of it (0: all), and torch raises for itself. Without one a pretended card of so many bytes is counted by hand, and the
same error is raised. Each step's line in SCRATCH/steps says its loss, its samples, how it was cut up, and the most memory that was reserved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast

scratch, steps, limit_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
gpu = torch.cuda.is_available()
WIDTH, TOKENS, LAYERS, BATCH, SAMPLES = (1024, 512, 8, 64, 640) if gpu else (32, 16, 2, 64, 640)
FULL = (
    "CUDA out of memory. Tried to allocate {tried:.2f} KiB. GPU 0 has a total capacity of {limit:.2f} KiB of which 0 bytes is free. Of the allocated memory "
    "{limit:.2f} KiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
)


class Waves(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(index))


class Layer(nn.Module):
    """What it keeps for the backward pass is as large as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def pretend_to_allocate(samples: int) -> int:
    """What the pretended card holds for so many samples; raises when that is too much for it."""
    held = 4 * samples * TOKENS * WIDTH * LAYERS * 4
    if limit_bytes and held > limit_bytes:
        raise torch.OutOfMemoryError(FULL.format(tried=held / 1024 / LAYERS, limit=limit_bytes / 1024))
    return held


if gpu and limit_bytes:
    torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.get_device_properties(0).total_memory)
device = torch.device("cuda" if gpu else "cpu")
torch.manual_seed(0)
model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
dataset = Waves()
loader = DataLoader(dataset, batch_sampler=holdfast.Sampler(dataset, batch_size=BATCH, resize=True))
run = holdfast.guard(model=model, optimizer=optimizer, save_every=10)
with (scratch / "steps").open("a") as lines:
    ids: list[int] = []
    total = torch.zeros((), device=device)
    for indices, batch in run.steps(loader, epochs=-(-steps * BATCH // SAMPLES)):
        held = 0 if gpu else pretend_to_allocate(len(indices))
        x = batch.to(device)
        loss = (model(x) - x.roll(1, dims=1)).square().mean() * run.weight
        loss.backward()
        total += loss.detach()
        ids += indices.tolist()
        if run.boundary:
            optimizer.step()
            optimizer.zero_grad()
            run.report(loss=total)
            peak = torch.cuda.max_memory_reserved() if gpu else held
            row = {"step": run.step, "loss": float(total), "ids": ids, "batches": run.accumulate, "peak_bytes": peak}
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            ids, total = [], torch.zeros((), device=device)
if gpu:
    segments = torch.cuda.memory_snapshot()
    (scratch / "expandable").write_text(str(any(segment.get("is_expandable") for segment in segments)))
