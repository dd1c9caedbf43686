"""GPUs: each multiplies matrices whose product is known, twice, and is compared with the others; and how fast memory is copied to it and back.

Through torch, because that is what will use them; without torch, or without a GPU, there is nothing to say beyond that.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from pathlib import Path
from typing import Any

from holdfast.preflight.check import Check, Place, bad, ok, warn

_SIZE, _COPY_BYTES = 4096, 256 << 20
_SLOW = 0.8  # Of the median of the GPUs here.


def look(place: Place) -> list[Check]:
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not devices:
        return [ok("graphics", "no GPU here: the CPU was examined")]
    if importlib.util.find_spec("torch") is None:
        return [warn("graphics", f"{devices} GPUs, not examined: torch is not installed here", "install torch: pip install 'holdfast[torch]'")]
    import torch

    if not torch.cuda.is_available():
        said = f"{devices} GPUs, and torch {torch.__version__} can use none"
        return [bad("graphics", said, "install a torch that fits the driver: see the check `versions`, and `nvidia-smi`")]
    return judge([_multiply(torch, number, 20 if place.full else 5) for number in range(torch.cuda.device_count())])


def _multiply(torch: Any, number: int, turns: int) -> tuple[str, float, float]:
    """What is wrong, if anything; operations a second; bytes a second to the GPU."""
    device = torch.device("cuda", number)
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        place = torch.arange(_SIZE * _SIZE, device=device).view(_SIZE, _SIZE)
        a, b = (place % 7 - 3).float(), (place % 11 - 5).float()
        x = (place[:, :1] % 3 - 1).double()
        first, best, right = a @ b, 0.0, True
        known = a.double() @ (b.double() @ x)
        for _ in range(turns):
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            product = a @ b
            torch.cuda.synchronize(device)
            best = max(best, 2.0 * _SIZE**3 / (time.perf_counter() - began))
            right = right and torch.equal(product, first) and torch.equal(product.double() @ x, known)
        return "" if right else "multiplied wrongly or not twice alike", best, _copy(torch, device)
    except RuntimeError as error:
        return str(error).splitlines()[0], 0.0, 0.0


def _copy(torch: Any, device: Any) -> float:
    here = torch.ones(_COPY_BYTES, dtype=torch.uint8).pin_memory()
    there = here.to(device)
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    there.copy_(here)
    torch.cuda.synchronize(device)
    return _COPY_BYTES / (time.perf_counter() - began)


def judge(seen: list[tuple[str, float, float]]) -> list[Check]:
    wrong = {number: what for number, (what, _, _) in enumerate(seen) if what}
    if wrong:
        who = ", ".join(f"GPU {number}" for number in wrong)
        said = "; ".join(f"GPU {number}: {what}" for number, what in wrong.items())
        return [bad("graphics", said, "take that GPU out of service, and look at `nvidia-smi -q` for its errors", culprit=who)]
    checks = []
    for name, unit, column in (("matrix product", "TFLOP/s", 1), ("copy to the GPU", "TB/s", 2)):
        values = [float(one[column]) / 1e12 for one in seen]
        median = statistics.median(values)
        slow = [number for number, value in enumerate(values) if value < _SLOW * median]
        told = f"{name}: {median:.3g} {unit} on {len(seen)} GPUs"
        who = ", ".join(f"GPU {number}" for number in slow)
        do = "look for heat, power caps, a narrow slot, or somebody else on it: `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER`"
        checks.append(warn("graphics", f"{told}, but {min(values):.3g} on {who}", do, culprit=who) if slow else ok("graphics", told))
    return checks
