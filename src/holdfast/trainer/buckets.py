"""DDP's buckets, settled before the first step: so that a process that resumes adds up gradients in the same order as one that never stopped.

DDP packs gradients into buckets twice: when it is constructed, and again after the first backward pass of the process, in the order in which gradients came.
The order of packing decides in which order ranks are summed, and so the last bits. A resumed process would take its first step with the first packing, where
the undisturbed run had long since changed to the second. One backward pass over zeros, in `guard`, makes every process change at once, and alike.

Left alone: models whose packing never changes (`find_unused_parameters`), and models where a backward pass over zeros would do more than nothing (hooks on
gradients, an optimizer in the backward pass, a static graph). Then the resume is exact but for those last bits, with more than two ranks.
"""

from __future__ import annotations

import sys
from typing import Any


def settle(pieces: dict[str, Any]) -> str:
    """Settle the buckets of every DDP model among `pieces`, on all ranks together. Says why it could not, if it could not."""

    parallel = sys.modules.get("torch.nn.parallel")
    for name, piece in pieces.items():
        if parallel is not None and isinstance(piece, parallel.DistributedDataParallel):
            why = _unsettled(piece)
            if why:
                return f"the sums of gradients of {name} may differ in their last bits after a resume: {why}"
    return ""


def _unsettled(model: Any) -> str:
    if model.find_unused_parameters:
        return ""  # Packed once, for good.
    if model.static_graph:
        return "its graph is declared static"
    trained = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    if any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for parameter in trained):
        return "its parameters have hooks on their gradients"
    if any(parameter.grad is not None for parameter in trained):
        return "it has gradients already; call guard() before the first backward pass"
    _backward_over_zeros(model.reducer, trained)
    return ""


def _backward_over_zeros(reducer: Any, trained: list[Any]) -> None:
    """What DDP's forward does around the module's own, and a loss that reaches every parameter and moves none."""
    import torch

    with torch.enable_grad():
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        torch.stack([(parameter.flatten()[:1] * 0).sum().float() for parameter in trained]).sum().backward()
    for parameter in trained:
        parameter.grad = None
    reducer._rebuild_buckets()
