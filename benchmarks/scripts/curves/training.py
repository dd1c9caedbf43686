"""What the kinds of healthy training have in common: what a step says, the plain supervised loop, data to learn, and the faults that can be put into it.

All of it is small enough for one core: a step takes about a millisecond. Everything random comes from torch's own generator, seeded for each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

LABELS, RATE, INPUTS, GRADIENTS, NAN = "labels shuffled", "learning rate x1000", "inputs x40 for a while", "gradients x10,000", "NaN in the data"
FAULTS = (LABELS, RATE, INPUTS, GRADIENTS, NAN)


class Said(NamedTuple):
    """What a training script reports after a step."""

    loss: float
    norm: float  # Of the gradient, before any clipping; NaN where the script does not report it.
    rate: float


Steps = Iterator[tuple[Said, ...]]  # One for each curve of the kind.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A fault from a step on; by default none."""

    fault: str = ""
    at: int = 0
    until: int = 1 << 60

    def now(self, fault: str, step: int) -> bool:
        return self.fault == fault and self.at <= step < self.until

    def data(self, step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.now(LABELS, step):
            y = y[torch.randperm(len(y))]
        if self.now(INPUTS, step):
            x = 40 * x
        if self.now(NAN, step):
            x = torch.full_like(x, math.nan)
        return x, y

    def rate(self, step: int) -> float:
        return 1000.0 if self.now(RATE, step) else 1.0

    def gradients(self, step: int, parameters: Iterable[nn.Parameter]) -> None:
        if self.now(GRADIENTS, step):
            for one in parameters:
                assert one.grad is not None
                one.grad *= 1e4 * torch.randn_like(one.grad).sign()  # Signs too: an optimizer that divides by the norm would not care for a factor.


HEALTHY = Trouble()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    train: Callable[[int, Trouble], Steps]  # Of how many steps it has, and what goes wrong in it.
    steps: int = 1800
    paces: tuple[int, ...] = (1, 3)  # Steps between two looks: the same run as a slow and as a quick training.
    curves: tuple[str, ...] = ("loss",)
    faults: tuple[str, ...] = ()  # Those that can be put into it.


def fit(
    model: nn.Module, batch: Callable[[int], tuple[Tensor, Tensor]], loss_of: Callable[[Tensor, Tensor], Tensor], *,
    steps: int, optimizer: torch.optim.Optimizer, rate: Callable[[int], float], trouble: Trouble = HEALTHY, clip: float = math.inf,
) -> Steps:  # fmt: skip
    """The plain supervised loop."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    for step in range(steps):
        now = rate(step) * trouble.rate(step)
        set_rate(optimizer, now)
        x, y = trouble.data(step, *batch(step))
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        trouble.gradients(step, parameters)
        norm = nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        yield (Said(loss.item(), norm.item(), now),)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[nn.Parameter]) -> float:
    """One step down; the norm of the gradient."""
    optimizer.zero_grad()
    loss.backward()
    norm = norm_of(parameters)
    optimizer.step()
    return norm


def norm_of(parameters: Iterable[nn.Parameter]) -> float:
    return nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None]).item()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def mlp(*sizes: int, between: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), between()]
    return nn.Sequential(*layers[:-1])


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate, fused=True)


def sgd(model: nn.Module, rate: float = 0.1, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, fused=True)


# Schedules: from a step to a learning rate.


def constant(rate: float) -> Callable[[int], float]:
    return lambda step: rate


def warm_cosine(peak: float, warm: int, steps: int) -> Callable[[int], float]:
    return lambda step: peak * (step + 1) / warm if step < warm else peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


# Data.


class Teacher:
    """Classes that a random network sees in random points: to be learned, and never learned out."""

    def __init__(self, inputs: int = 20, classes: int = 10) -> None:
        self.inputs, self.classes = inputs, classes
        self.net = mlp(inputs, 32, classes, between=nn.Tanh)
        for one in self.net.parameters():
            one.requires_grad_(False).mul_(3)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, self.inputs)
        return x, self.net(x).argmax(1)


def pictures(size: int, side: int = 8) -> tuple[Tensor, Tensor]:
    """Noisy pictures of a bar, flat or upright, in one of its places; and which of them."""
    kind = torch.randint(2 * side, (size,))
    lines = nn.functional.one_hot(kind % side, side).float()
    upright = (kind >= side)[:, None, None]
    clean = torch.where(upright, lines[:, None, :].expand(-1, side, -1), lines[:, :, None].expand(-1, -1, side))
    return clean[:, None] + 0.6 * torch.randn(size, 1, side, side), kind
