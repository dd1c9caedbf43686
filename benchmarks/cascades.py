"""Cascades: one true cause on one of 4 to 512 ranks, echoes on all the others. Is the cause named, and the rank?

The incidents are made by incidents/cascades.py from the seed: clocks that differ, logs that are missing or cut, tables of launchers that name the wrong one.
Each is read and diagnosed as `holdfast diagnose DIRECTORY` does it, signatures and text model together. A case counts as right when both cause and rank are.
Where a rank never came, and nothing says why, a collective's timeout and a hang are both right, if the rank is.
"""

from __future__ import annotations

import time
from collections import Counter
from math import sqrt

from harness.measure import Report, arguments, say
from incidents.cascades import Cascade, cascades

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.causes import diagnose
from holdfast.diagnose.reading import read
from holdfast.domain.log_diagnosis import LogDiagnosis

BAR = 0.95


def main() -> None:
    chosen = arguments(__doc__ or "", count=(240, 60, "incidents"))
    report = Report("Cascades")
    causes, ranks, both, took_s = [], [], [], []
    wrong: list[dict[str, object]] = []
    confused: Counter[str] = Counter()
    for number, cascade in enumerate(cascades(chosen.seed, chosen.count)):
        began = time.perf_counter()
        said = judged(cascade)
        took_s.append(time.perf_counter() - began)
        causes.append(said.cause in cascade.causes)
        ranks.append(said.ranks == (cascade.rank,))
        both.append(causes[-1] and ranks[-1])
        if not both[-1]:
            confused[f"{cascade.causes[0]} as {said.cause}" if not causes[-1] else f"{cascade.causes[0]}: another rank"] += 1
            told = {"truth": [*cascade.causes, cascade.rank], "said": [said.cause, *said.ranks[:4]], "because": said.because}
            wrong.append({"name": cascade.name, "ranks": cascade.ranks, **told})
        if number % 40 == 39:
            say(f"{number + 1} of {chosen.count}: {sum(both)} right")
    for name, right in (("right cause", causes), ("right rank", ranks), ("right cause and rank", both)):
        low, high = interval(sum(right), len(right))
        report.bar(name, sum(right) / len(right), "", at_least=BAR)
        report.series(name, "", [sum(right) / len(right)], f"{sum(right)} of {len(right)}, 95 % interval {low:.3f} to {high:.3f}")
    report.series("one incident read and diagnosed", "s", took_s)
    for text, count in confused.most_common(12):
        report.note(f"{count} times {text}")
    report.raw["wrong"] = wrong
    report.finish(chosen)


def judged(cascade: Cascade) -> LogDiagnosis:
    digest = read([(path, [text.encode()]) for path, text in cascade.files])
    return diagnose(digest, model=shipped_text_model())


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


if __name__ == "__main__":
    main()
