"""Tuning: hyper-parameters that are otherwise than the script says, because training went wrong with them (`--may-change`) or to find out what they do
(`holdfast bisect`).

    tune("batch_size", 64)         64, or what it was changed to: for anything else, where the script asks for it
    lr, weight_decay, clip,        without a line of the script: put in place when an optimizer begins its step, and back when it has done it, so that a
    warmup                         schedule goes on from its own values and never sees ours

A change is text: `lr=3e-4`, `lr=*0.5`, `clip=1.0`, `warmup=100@40` (over 100 steps from step 40 on).

Is wrong    where gradients are still scaled in the optimizer's step (a GradScaler with a fused optimizer): clipping then sees norms that are too large. Where
            steps are replayed by CUDA graphs: hooks run when a graph is made, and not again.
Costs       nothing without a change.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from holdfast.errors import UserError
from holdfast.trainer.place import place_here

OURS: Final = ("lr", "weight_decay", "clip", "warmup")  # What is changed without the script's help: an optimizer's own come back with its checkpoint.
_asked: set[str] = set()  # What the script has asked for.
Value = TypeVar("Value", int, float, str)


def tune(name: str, value: Value) -> Value:
    """`value`, or what it was changed to for this run: `--change "batch_size=64"`, `"dropout=*0.5"`. A learning rate, a weight decay, clipping and a warm-up
    are changed without being asked for, and are given back as they are."""
    _asked.add(name)
    said = read(place_here().tune).get(name)
    if said is None or name in OURS:
        return value
    try:
        if not said.startswith("*"):
            return type(value)(said)
        changed = float(value) * float(said[1:])
        return type(value)(round(changed) if isinstance(value, int) else changed)
    except ValueError:
        raise UserError(f"{name}={said}: expected a {type(value).__name__}, such as {value!r}, or a factor such as *0.5.") from None


def read(text: str) -> dict[str, str]:
    """Name to value, as text; raises UserError for what is no such list."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier() or not value.strip():
            raise UserError(f"{part!r} is no change: expected NAME=VALUE or NAME=*FACTOR, such as lr=*0.5.")
        found[name.strip()] = value.strip()
    return found


class Tuning:
    """What is changed about the optimizers of one run."""

    def __init__(self, text: str, pieces: Mapping[str, Any], rate_times: float = 1.0) -> None:
        """`rate_times`: because the gang is smaller than asked for."""
        changed = read(text)
        ours = {name: value for name, value in changed.items() if name in OURS}
        self.step = 0  # As many are done.
        self.unread = sorted(changed.keys() - set(OURS) - _asked)  # What nobody has asked for: it changes nothing.
        try:
            self._clip = float(ours.get("clip", 0.0))
            self._scaled = {name: (value.startswith("*"), float(value.lstrip("*"))) for name, value in ours.items() if name in ("lr", "weight_decay")}
            steps, _, begin = ours.get("warmup", "0@0").partition("@")
            self._warm_up, self._warm_up_from = int(steps), int(begin or 0)
        except ValueError:
            raise UserError(f"{text!r}: expected numbers, such as lr=*0.5, weight_decay=0.01, clip=1.0 or warmup=100.") from None
        torch = sys.modules.get("torch")
        optimizers = [piece for piece in pieces.values() if torch is not None and isinstance(piece, torch.optim.Optimizer)]
        self._first: list[float] = [float(group.get("initial_lr", group["lr"])) for one in optimizers[:1] for group in one.param_groups[:1] if "lr" in group]
        self._before: list[dict[str, Any]] = []
        self._handles: list[Any] = []
        self._smaller = rate_times
        if ours or rate_times != 1.0:
            for one in optimizers:
                self._handles += [one.register_step_pre_hook(self._put), one.register_step_post_hook(self._put_back)]

    @property
    def rate_times(self) -> float:
        """The learning rate is so many times what the script has made of it."""
        by_factor, value = self._scaled.get("lr", (True, 1.0))
        factor = (value if by_factor else value / self._first[0] if self._first and self._first[0] else 1.0) * self._smaller
        done = self.step - self._warm_up_from
        return factor * min(1.0, (done + 1) / self._warm_up) if self._warm_up and done >= 0 else factor

    def uninstall(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _put(self, optimizer: Any, *_: Any) -> None:
        """At the beginning of an optimizer's step, when all gradients are there."""
        if self._clip:
            import torch

            torch.nn.utils.clip_grad_norm_([parameter for group in optimizer.param_groups for parameter in group["params"]], self._clip)
        self._before = [{name: group[name] for name in ("lr", "weight_decay") if name in group} for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = group["lr"] * self.rate_times
            if "weight_decay" in group and "weight_decay" in self._scaled:
                by_factor, value = self._scaled["weight_decay"]
                group["weight_decay"] = group["weight_decay"] * value if by_factor else value

    def _put_back(self, optimizer: Any, *_: Any) -> None:
        for group, before in zip(optimizer.param_groups, self._before, strict=True):
            group.update(before)
