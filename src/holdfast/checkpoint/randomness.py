"""The state of every random number generator a training script draws from without naming it: Python, NumPy, torch, this rank's GPU."""

from __future__ import annotations

import sys
from typing import Any


def capture_randomness() -> dict[str, Any]:
    """Plain values that `apply_randomness` turns back into the same streams."""
    import random

    import torch

    cuda: Any = torch.cuda
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(words), gauss], "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)]
    if cuda.is_initialized():  # Asking earlier would open the GPU for a script that does not use it.
        state["cuda"] = cuda.get_rng_state()
    return state


def apply_randomness(state: dict[str, Any]) -> None:
    """Go on drawing where `capture_randomness` was called; nothing at all changes nothing."""
    if not state:
        return
    import random

    import torch

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(tuple(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
