"""Forgotten: what trains or follows the models given to `guard` and was not given itself, so that it would start from nothing after a restart.

Sees        optimizers that step on parameters of those models, in the first steps. Among all objects, when the first step is done: schedulers of those
            optimizers and of the ones given, gradient scalers in use, averages of those models. The sampler of a loader, if it keeps state.
Says        one line for each. Nothing about what a piece holds, and nothing about an optimizer of other parameters.
Is wrong    about what an earlier training in the same process left behind, such as a scheduler in a notebook that is not used any more.
Costs       a pass over all objects, once, in a process that begins a run; and a call at each optimizer's step in its first steps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.checkpoint.pieces import unwrapped, with_article
from holdfast.trainer.say import Say

_STEPS: Final = 8


class Forgotten:
    def __init__(self, pieces: Mapping[str, Any], say: Say) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._pieces, self._say, self._steps = pieces, say, 0
        self._known = {id(one) for piece in pieces.values() for one in _within(piece)}
        self._models = {name: unwrapped(piece) for name, piece in pieces.items() if isinstance(unwrapped(piece), torch.nn.Module)}
        self._owner = {id(parameter): name for name, model in self._models.items() for parameter in model.parameters()}
        self._optimizers: list[Any] = [piece for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer)]
        self._handle: Any = register_optimizer_step_post_hook(self._stepped) if self._owner else None

    def look(self) -> bool:
        """A step is done. False when there is nothing more to look for."""
        self._steps += 1
        if self._steps == 1 and self._models:
            for one in gc.get_objects():
                self._consider(one)
        if self._steps < _STEPS:
            return True
        if self._handle is not None:
            self._handle.remove()
        return False

    def sampler(self, loader: Any) -> None:
        """The loader of the loop, with what orders its samples."""
        own = {id(piece) for piece in self._pieces.values()}
        inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        for one in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None), inner):
            keeps = hasattr(one, "state_dict") and hasattr(one, "load_state_dict") and not type(one).__module__.startswith("holdfast.")
            if keeps and id(one) not in own and id(loader) not in own:
                self._tell(one, "that orders the samples of the loader and keeps a state", "sampler=sampler")
                return

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._known:
            return
        self._known.add(id(optimizer))
        holds = {self._owner[id(one)] for group in optimizer.param_groups for one in group["params"] if id(one) in self._owner}
        if holds:
            self._optimizers.append(optimizer)
            self._tell(optimizer, f"that holds parameters of {_quoted(holds)}", "optimizer=optimizer")

    def _consider(self, one: Any) -> None:
        import torch

        kind = type(one)
        if id(one) in self._known:
            return
        if issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
            if any(getattr(one, "optimizer", None) is optimizer for optimizer in self._optimizers):
                self._tell(one, f"that sets the learning rate of {with_article(type(one.optimizer).__name__)}", "scheduler=scheduler")
        elif issubclass(kind, torch.amp.GradScaler):
            if one.is_enabled() and one._scale is not None:
                self._tell(one, "that is in use", "scaler=scaler")
        elif issubclass(kind, torch.optim.swa_utils.AveragedModel):
            shapes = _shapes(one.module)
            of = {name for name, model in self._models.items() if _shapes(getattr(model, "module", model)) == shapes}
            if of:
                self._tell(one, f"that averages {_quoted(of)}", "average=average")

    def _tell(self, one: Any, what: str, give: str) -> None:
        self._known.add(id(one))
        call = ", ".join([*(f"{name}=…" for name in sorted(self._pieces)), give])
        kind = with_article(type(one).__name__)
        self._say.line(f"{kind} {what} is not a piece: it will start from nothing after a restart. guard({call}) keeps it.")


def _within(piece: Any) -> Iterator[Any]:
    """A piece, and what it visibly holds: its own attributes, and what is in lists, tuples and dictionaries of it."""
    yield piece
    values = piece.values() if isinstance(piece, Mapping) else getattr(piece, "__dict__", {}).values()
    for value in values:
        yield value
        if isinstance(value, list | tuple):
            yield from value
        elif isinstance(value, Mapping):
            yield from value.values()


def _shapes(model: Any) -> list[Any]:
    return [parameter.shape for parameter in model.parameters()]


def _quoted(names: set[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names))
