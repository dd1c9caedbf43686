"""Calibration of the diagnosis: which temperature and which lapse make confidence and truth agree, on written messages that the text model has not seen, and
with `--incidents DIR` on the incidents that incidents/cause.py --out really caused.

Prints both figures for a grid, and those that `src/holdfast/diagnose/weights.py` has. Nothing is written: a change there is a decision. Logs of others have no
part in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from unittest import mock

from harness.measure import Report, arguments, say
from train_text_model import Example, of_caused, of_written

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose import causes, weights

TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
LAPSES = (0.0, 0.02, 0.03, 0.04, 0.05)


def main() -> None:
    texts = {"incidents": "what incidents/cause.py --out has caused"}
    chosen = arguments(__doc__ or "", texts=texts, each=(4, 2, "logs of every written message"))
    report = Report("Calibration of the diagnosis")
    examples = [*(one for one in of_written(chosen.seed + 3, chosen.each) if one.kept), *of_caused(chosen.incidents)]
    say(f"{len(examples)} logs of {len({one.group for one in examples})} messages and ways")
    seen = [log_odds(one) for one in examples]
    right = sum(max(odds, key=lambda name: odds[name]) == one.cause for one, odds in zip(examples, seen, strict=True)) / len(examples)
    report.series("accuracy", "", [right])
    for temperature in TEMPERATURES:
        for lapse in LAPSES:
            surprise, error = judged(examples, seen, temperature, lapse)
            here = "; as it ships" if (temperature, lapse) == (weights.TEMPERATURE, weights.LAPSE) else ""
            report.series(f"temperature {temperature}, lapse {lapse}", "", [error], f"mean surprise {surprise:.4f}{here}")
    report.bar("calibration error as it ships", judged(examples, seen, weights.TEMPERATURE, weights.LAPSE)[1], "", at_most=0.05)
    report.finish(chosen)


def log_odds(one: Example) -> dict[str, float]:
    """What stands behind the probabilities of an answer."""
    kept: list[dict[str, float]] = []
    weighing = causes.probabilities_of

    def keeping(odds: Mapping[str, float]) -> dict[str, float]:
        kept.append(dict(odds))
        return weighing(odds)

    with mock.patch.object(causes, "probabilities_of", keeping):
        causes.diagnose(one.digest, model=shipped_text_model())
    return kept[0]


def judged(examples: Sequence[Example], seen: Sequence[Mapping[str, float]], temperature: float, lapse: float) -> tuple[float, float]:
    """The mean surprise at the truth, and how far confidence and truth are apart in ten steps."""
    surprise = 0.0
    steps: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    with mock.patch.object(weights, "TEMPERATURE", temperature), mock.patch.object(weights, "LAPSE", lapse):
        for one, odds in zip(examples, seen, strict=True):
            shares = causes.probabilities_of(odds)
            best = max(shares, key=lambda name: shares[name])
            surprise -= math.log(shares[one.cause])
            steps[min(9, int(10 * shares[best]))].append((shares[best], best == one.cause))
    apart = sum(abs(sum(sure for sure, _ in each) - sum(true for _, true in each)) for each in steps.values())
    return surprise / len(examples), apart / len(examples)


if __name__ == "__main__":
    main()
