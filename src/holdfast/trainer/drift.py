"""Drift: how large the parameters are, how far a step moves them, and whether the replicas of a model still hold the same ones.

Sees        parameters of the optimizers and DDP models given to `guard`, at steps that are multiples of a power of two, so that all ranks look at the same.
Says        norms of the parameters and of their last change, and a checksum of a DDP model's parameters, in the gauge table. The norm of the change is taken
            of a few million parameters and scaled up. Replicas have the same checksum, to the bit: DDP gives them the same gradients.
Is wrong    where a script means its replicas to differ under DDP (it changes parameters by rank): it would be told that they do.
Knows       at which steps they were compared of late: what was saved up to there is worth going back to if they differ, and stays.
Costs       a pass over the parameters at every look; looks are spaced so that it stays below a thousandth of the time. On a GPU nothing is waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from holdfast.domain.gauges import DIGEST, DIGEST_VALUES, PARAMETER_NORM, UPDATE_NORM
from holdfast.trainer.numbers import Numbers

_FIRST_EVERY: Final = 64  # Steps from one look to the next, at least.
_SHARE: Final = 0.001
_SAMPLE: Final = 4_000_000  # Parameters whose change is measured.
_HEARD_S: Final = 3.0  # So long a checksum stands at least, so that control has heard it from all ranks before the next.
_JUDGED_S: Final = 10.0  # So long after a look control has compared what the ranks said, and stopped the gang if they differ.


class Drift:
    def __init__(self, pieces: Mapping[str, Any], numbers: Numbers, world_size: int, step: int) -> None:
        self._numbers = numbers
        self.every = _FIRST_EVERY  # Steps from one look to the next.
        self._cost_s = 0.0
        self._before: list[tuple[Any, Any]] = []
        self._parameters = _parameters(pieces)
        self._replicas = _replicas(pieces, world_size)
        self._looked_at = perf_counter()
        self._looks = [(float("-inf"), step)] if self._replicas else []  # When, at which step. All begin with the same.

    @property
    def compared(self) -> tuple[int, ...]:
        """Steps of which it may yet be told that the replicas were alike there and no longer at the next. Of those that were surely judged the newest but one:
        another rank may look half as often, and only what both have looked at is compared.
        """
        judged_before = perf_counter() - _JUDGED_S
        while len(self._looks) > 2 and self._looks[2][0] <= judged_before:
            del self._looks[0]
        return tuple(step for _, step in self._looks)

    def look(self, step: int) -> None:
        """To be called with `step` done, when it or the next is a multiple of `every`: what the last step before a look left is what that step moves."""
        began = perf_counter()
        if step % self.every:
            self._before = [(parameter, parameter.detach().clone()) for parameter in _sample(self._parameters)]
            self._cost_s = perf_counter() - began
            return
        if self._replicas:
            self._numbers.offer(DIGEST, _digest(self._replicas, step))
            if began - self._looks[-1][0] >= _JUDGED_S / 2:  # A checkpoint is kept for each.
                self._looks.append((began, step))
        if self._parameters:
            self._numbers.offer(PARAMETER_NORM, _norm(self._parameters))
        if self._before:
            moved = _norm([now.detach() - before for now, before in self._before])
            share = sum(before.numel() for _, before in self._before) / max(1, sum(parameter.numel() for parameter in self._parameters))
            self._numbers.offer(UPDATE_NORM, moved / share**0.5)
            self._before = []
        self._space_out(self._cost_s + perf_counter() - began)
        self._cost_s = 0.0

    def _space_out(self, cost_s: float) -> None:
        """Look half as often while it costs too much, or is too often to be heard. The steps of the larger spacing are among those of the smaller one, so ranks
        stay comparable."""
        now = perf_counter()
        if cost_s > _SHARE * (now - self._looked_at) or now - self._looked_at < _HEARD_S:
            self.every *= 2
        self._looked_at = now


def _parameters(pieces: Mapping[str, Any]) -> list[Any]:
    """What the optimizers own; the part of it that is here."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    owners = [piece for piece in pieces.values() if isinstance(piece, torch.optim.Optimizer)]
    found = [parameter for owner in owners for group in owner.param_groups for parameter in group["params"]]
    return [parameter.to_local() if hasattr(parameter, "to_local") else parameter for parameter in found if parameter.is_floating_point()]


def _replicas(pieces: Mapping[str, Any], world_size: int) -> list[Any]:
    """The parameters that every rank of the job holds alike."""
    parallel = sys.modules.get("torch.nn.parallel")
    models = [piece for piece in pieces.values() if parallel is not None and isinstance(piece, parallel.DistributedDataParallel)]
    whole = [model for model in models if model.process_group.size() == world_size > 1]
    return [parameter for model in whole for parameter in model.module.parameters() if parameter.element_size() in (2, 4, 8)]


def _sample(parameters: list[Any]) -> list[Any]:
    chosen: list[Any] = []
    room = _SAMPLE
    for parameter in sorted(parameters, key=lambda one: int(one.numel())):
        if chosen and parameter.numel() > room:
            break
        chosen.append(parameter)
        room -= parameter.numel()
    return chosen


def _norm(tensors: list[Any]) -> Any:
    import torch

    with torch.no_grad():
        norms: Any = torch._foreach_norm([tensor.detach() for tensor in tensors])
        return torch.stack([norm.float() for norm in norms]).norm()


def _digest(parameters: list[Any], step: int) -> Any:
    """The parameters' bits added up, each tensor with a factor of its own, folded to 24 bits so that a flip of any bit shows."""
    import torch

    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    with torch.no_grad():
        bits = [parameter.detach().view(kinds[parameter.element_size()]) for parameter in parameters]
        total = torch.stack([one.sum(dtype=torch.int64) * (2 * number + 1) for number, one in enumerate(bits)]).sum()
        folded = (total ^ (total >> 23) ^ (total >> 46)) & (DIGEST_VALUES - 1)
        return folded.double() + float(step * DIGEST_VALUES)
