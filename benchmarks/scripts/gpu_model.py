"""What the trainings on one GPU share: a model of 52 million parameters a block, and a clock for parts of our own code."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

WIDTH, HIDDEN, BATCH = 2560, 10240, 16384


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def timing(took: dict[str, float], owner: Any, name: str, label: str) -> None:
    """Add the seconds of each call to `took` under the label."""
    work = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return work(*arguments, **named)
        finally:
            took[label] = took.get(label, 0.0) + time.monotonic() - began

    setattr(owner, name, timed)
