"""A training on one GPU that kills itself after each save, and writes down when it came how far after the kill before.

gpu_dies.py SCRATCH KILLS BLOCKS   under `holdfast run`. Appends to SCRATCH/times.jsonl a line for each process that came back.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

AT = {"script": time.monotonic()}  # Before anything else: the clock is the same in all processes of a machine.

import torch  # noqa: E402
from torch import nn  # noqa: E402

import holdfast  # noqa: E402
from holdfast.checkpoint import read  # noqa: E402
from holdfast.checkpoint.persist import read_index  # noqa: E402
from holdfast.trainer import snapshots  # noqa: E402

WIDTH, HIDDEN, BATCH = 2560, 10240, 16384
STEPS_BEFORE = 5  # Of each process, before it dies: the last of them is saved.
PARTS: dict[str, float] = {}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def timing(owner: Any, name: str, label: str) -> None:
    work = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return work(*arguments, **named)
        finally:
            PARTS[label] = PARTS.get(label, 0.0) + time.monotonic() - began

    setattr(owner, name, timed)


def now(what: str, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    AT[what] = time.monotonic()


def in_memory(step: int) -> bool:
    """Whether a process that comes back could restore it."""
    found = [read_index(path) for path in Path(os.environ["HOLDFAST_SNAPSHOTS"]).glob("snapshot-*") if path.suffix != ".index"]
    return any(index is not None and index.step == step for index in found)


def main() -> None:
    scratch, kills, blocks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    timing(snapshots.Snapshots, "find", "verified")
    timing(snapshots.Snapshots, "pin", "registered")
    timing(read, "_recall_section", "copied")
    timing(read, "_wait_for_gpu", "copied")
    torch.zeros(1, device=device)
    now("context", device)
    with torch.device(device):
        model = nn.Sequential(*(Residual() for _ in range(blocks)))
        x = torch.randn(BATCH if device == "cuda" else 8, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    now("built", device)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=STEPS_BEFORE)
    now("restored", device)
    began = run.step
    for step in run.steps(10**9):
        with torch.autocast(device, torch.bfloat16):
            loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == began:
            now("stepped", device)
            tell(scratch, began)
            if killed(scratch) >= kills:
                os._exit(0)  # Without the last save, which nobody needs.
        if step > began + STEPS_BEFORE and in_memory(began + STEPS_BEFORE):
            with (scratch / "kills").open("a") as file:
                file.write(f"{time.monotonic()}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def killed(scratch: Path) -> int:
    return len((scratch / "kills").read_text().split()) if (scratch / "kills").exists() else 0


def tell(scratch: Path, step: int) -> None:
    if killed(scratch):
        at = float((scratch / "kills").read_text().split()[-1])
        line = {"step": step, "parts": PARTS, **{what: when - at for what, when in AT.items()}}
        with (scratch / "times.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
