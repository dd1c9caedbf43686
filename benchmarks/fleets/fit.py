"""Fit the precursor model on simulated fleets and write its coefficients: `python benchmarks/fleets/fit.py [--check]`.

What is planted is weak, middling and strong; the fleets of the benchmark have other seeds. `--check` writes nothing and says whether the same comes out.
The alarm is the lowest at which seven alarms in ten are right over all of it: who is drained for nothing costs as much as who fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import holdfast.learn.precursor_weights as weights_module
from fleets.precursors import Planted, judge, play, rows
from holdfast.learn.precursors import NAMES, fit

HORIZON_H = 48.0
PRECISION = 0.7
FIRST_SEED = 1000
PLANTED = tuple(Planted(announced=announced, strength=strength) for announced in (0.4, 0.8) for strength in (10.0, 30.0, 100.0))


def fitted() -> tuple[float, tuple[float, ...], float]:
    fleets = [play(planted, nodes=512, days=60, seed=FIRST_SEED + place) for place, planted in enumerate(PLANTED)]
    taken = [rows(fleet, HORIZON_H) for fleet in fleets]
    bias, weights = fit(np.concatenate([one[0] for one in taken]), np.concatenate([one[1] for one in taken]))
    bias, weights = round(bias, 3), np.round(weights, 3)
    chances = [1.0 / (1.0 + np.exp(-(bias + one[0] @ weights))) for one in taken]

    def precision(alarm: float) -> float:
        judged = [judge(fleet, chance, one[2], one[3], alarm=alarm, horizon_h=HORIZON_H) for fleet, chance, one in zip(fleets, chances, taken, strict=True)]
        alarms = sum(one.alarms for one in judged)
        return sum((one.precision or 0.0) * one.alarms for one in judged) / alarms if alarms else 1.0

    alarm = next(alarm for alarm in (round(0.02 * place, 2) for place in range(1, 50)) if precision(alarm) >= PRECISION)
    return bias, tuple(float(one) for one in weights), alarm


def main() -> None:
    bias, weights, alarm = fitted()
    if "--check" in sys.argv:
        same = (bias, weights, alarm) == (weights_module.BIAS, weights_module.WEIGHTS, weights_module.ALARM)
        sys.exit(0 if same else f"fit.py: another model comes out: bias {bias}, weights {weights}, alarm {alarm}")
    lines = "".join(f"    {weight},  # {name}\n" for name, weight in zip(NAMES, weights, strict=True))
    text = (
        '"""The coefficients of the precursor model. Written by `benchmarks/fleets/fit.py`; not edited by hand."""\n\n'
        f"HORIZON_H = {HORIZON_H}\nALARM = {alarm}\nBIAS = {bias}\nWEIGHTS = (\n{lines})\n"
    )
    Path(weights_module.__file__).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
