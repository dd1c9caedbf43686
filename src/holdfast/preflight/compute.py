"""Compute: every core multiplies the same matrices twice. The product is known and must be right to the last bit, and no core may be far slower.

The entries are small whole numbers, so that every sum is exact in floating point whatever the order; and by Freivalds, if C = A B then C x = A (B x).

Is wrong    about speed on a machine that is busy: the best of several turns counts, and a slow core is a warning only.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

from holdfast.preflight.check import Check, Place, bad, looking, ok, warn

_SIZE = 384
_CORES_MAX = 64  # Of more, as many are chosen, evenly.
_SLOW = 0.5  # Of the median rate.


def look(place: Place) -> list[Check]:
    cores = sorted(os.sched_getaffinity(0))
    chosen = cores[:: -(-len(cores) // _CORES_MAX)]
    turns = 8 if place.full else 3
    rates, wrong = {}, []
    for core in chosen:
        looking(f"core {core}")
        os.sched_setaffinity(0, {core})
        rates[core], right = multiply(turns)
        if not right:
            wrong.append(core)
    return judge(rates, wrong)


def multiply(turns: int) -> tuple[float, bool]:
    """The best rate, in floating-point operations a second, and whether every product was right."""
    a, b, x = whole(_SIZE, 7), whole(_SIZE, 11), whole(_SIZE, 5)[:, 0]
    first, best, right = a @ b, 0.0, True
    known = a @ (b @ x)
    for _ in range(turns):
        began = time.perf_counter()
        product = a @ b
        best = max(best, 2.0 * _SIZE**3 / (time.perf_counter() - began))
        right = right and product.tobytes() == first.tobytes() and bool((product @ x == known).all())
    return best, right


def whole(size: int, modulus: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    rows, columns = np.indices((size, size))
    return ((rows * 31 + columns * 17 + rows * columns) % modulus - modulus // 2).astype(np.float64)


def judge(rates: dict[int, float], wrong: list[int]) -> list[Check]:
    median = statistics.median(rates.values())
    if wrong:
        who = ", ".join(f"core {core}" for core in wrong)
        said = f"{who} multiplied wrongly or not twice alike: silent corruption"
        return [bad("compute", said, "take the machine out of service", culprit=who)]
    slow = [core for core, rate in rates.items() if rate < _SLOW * median]
    told = f"{len(rates)} cores, {median / 1e9:.1f} GFLOP/s each, results exact and twice alike"
    if slow:
        who = ", ".join(f"core {core}" for core in slow)
        said = f"{told}, but {who} at {min(rates.values()) / 1e9:.1f} GFLOP/s"
        return [warn("compute", said, "see what else runs there (`top`), and whether it is held back (frequency, temperature)", culprit=who, flops=median)]
    return [ok("compute", told, flops=median)]
