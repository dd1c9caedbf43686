"""Between epochs: what a script does there is done once more for epochs that are over, when its loop over epochs is entered again.

    for epoch in range(90):
        for batch in run.steps(loader):      # over before the save that was restored: gives nothing
            …
        scheduler.step()                     # and this is in what was restored already

So what such lines change is noted when the first epoch is passed over, and put back when the loop is where it was: everything given to `guard` but the models
that an optimizer trains and what optimizers keep of each parameter, which nobody changes there.

Is wrong    about what was not given to `guard`: files that are written there are written again. And about what is counted before the first `run.steps`, which
            cannot be told from what the script means to change about a run that goes on.
Costs       nothing where no epoch is passed over; else a copy of models that nobody trains (averages), in the host's memory, until the loop is there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.pieces import apply, capture, unwrapped
from holdfast.checkpoint.plain import is_dtensor


class Between:
    """The pieces as they are now, at the first epoch that is passed over."""

    def __init__(self, pieces: Mapping[str, Any]) -> None:
        import torch

        optimizers = [piece for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer)]
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        trained = {id(parameter) for group in self._groups for parameter in group["params"]}
        models = {name: unwrapped(piece) for name, piece in pieces.items() if isinstance(unwrapped(piece), torch.nn.Module)}
        averages = {name: model for name, model in models.items() if not any(id(one) in trained or is_dtensor(one) for one in model.parameters())}
        self._pieces = {name: piece for name, piece in pieces.items() if name in averages or (name not in models and piece not in optimizers)}
        self._states = {name: _in_host_memory(state) if name in averages else copy.deepcopy(state) for name, state in capture(self._pieces).items()}
        self._settings = [copy.deepcopy({name: value for name, value in group.items() if name != "params"}) for group in self._groups]

    def put_back(self) -> None:
        apply(self._pieces, self._states, lambda _: None)
        for group, settings in zip(self._groups, self._settings, strict=True):
            group.update(settings)


def _in_host_memory(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().cpu().clone() if hasattr(value, "detach") else copy.deepcopy(value) for name, value in state.items()}
