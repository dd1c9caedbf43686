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

AT = {"script": time.monotonic()}  # Before anything else: the clock is the same in all processes of a machine.

import torch  # noqa: E402
from gpu_model import BATCH, WIDTH, Residual, timing  # noqa: E402
from torch import nn  # noqa: E402

import holdfast  # noqa: E402
from holdfast.checkpoint import read  # noqa: E402
from holdfast.checkpoint.persist import read_index  # noqa: E402
from holdfast.trainer import snapshots  # noqa: E402

SAVE_EVERY = 5
PARTS: dict[str, float] = {}


def now(what: str, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    AT[what] = time.monotonic()


def in_memory() -> int:
    """The newest step that a process which comes back could restore."""
    found = [read_index(path) for path in Path(os.environ["HOLDFAST_SNAPSHOTS"]).glob("snapshot-*") if path.suffix != ".index"]
    return max((index.step for index in found if index is not None), default=0)


def main() -> None:
    scratch, kills, blocks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    timing(PARTS, snapshots.Snapshots, "find", "verified")
    timing(PARTS, snapshots.Snapshots, "pin", "registered")
    timing(PARTS, read, "_recall_section", "copied")
    timing(PARTS, read, "_wait_for_gpu", "copied")
    torch.zeros(1, device=device)
    now("context", device)
    with torch.device(device):
        model = nn.Sequential(*(Residual() for _ in range(blocks)))
        x = torch.randn(BATCH if device == "cuda" else 8, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    now("built", device)
    run = holdfast.guard(model=model, optimizer=optimizer, save_every=SAVE_EVERY)
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
            if len(killed(scratch)) >= kills:
                os._exit(0)  # Without the last save, which nobody needs.
        if in_memory() > began:
            with (scratch / "kills").open("a") as file:
                file.write(f"{time.monotonic()} {in_memory()}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def killed(scratch: Path) -> list[list[str]]:
    """When, and with which step in memory."""
    return [line.split() for line in (scratch / "kills").read_text().splitlines()] if (scratch / "kills").exists() else []


def tell(scratch: Path, step: int) -> None:
    if killed(scratch):
        at, saved = killed(scratch)[-1]
        line = {"step": step, "saved": int(saved), "parts": PARTS, **{what: when - float(at) for what, when in AT.items()}}
        with (scratch / "times.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
