"""Diagnosis: on logs of real failures as good as before, and never "try again" for what cannot pass.

The figures are those of `diagnose.py`, as it ships; so is the folder of the logs, which HOLDFAST_DATA names here.

Alone: `cd benchmarks && HOLDFAST_DATA=DIR ../.venv/bin/python -m legal.diagnosis`.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from diagnose import FETCH, accuracy, calibration_error, logs, macro_f1, said
from harness.jobs import scratch_directory
from harness.measure import Report, arguments

from holdfast.control.shipped_text_model import shipped_text_model
from holdfast.diagnose.causes import diagnose
from holdfast.diagnose.taxonomy import HEALTHY, UNKNOWN, Permanence

# What it was on 2026-11-16 (docs/measured.md), cut after the third digit.
ACCURACY, MACRO_F1, CALIBRATION_ERROR = 0.936, 0.934, 0.048


def measure(report: Report, chosen: Namespace, scratch: Path) -> None:
    rows = logs(getattr(chosen, "data", ""))
    if rows is None:
        report.note(f"Diagnosis was not judged: HOLDFAST_DATA is not set. {FETCH}")
        return
    model = shipped_text_model()
    answers = [said(diagnose(row.digest, model=model)) for row in rows]
    judged = list(zip(rows, answers, strict=True))
    faulty = sum(row.label == HEALTHY and one.cause not in (HEALTHY, UNKNOWN) for row, one in judged)
    passing = sum(row.label != HEALTHY and (row.permanence, one.permanence) == (Permanence.PERMANENT, Permanence.TRANSIENT) for row, one in judged)
    report.bar("diagnosis: accuracy", accuracy(rows, answers), "", at_least=ACCURACY)
    report.bar("diagnosis: macro-F1", macro_f1(rows, answers), "", at_least=MACRO_F1)
    report.bar("diagnosis: healthy called faulty", faulty, "logs", at_most=0)
    report.bar("diagnosis: calibration error", calibration_error(rows, answers), "", at_most=CALIBRATION_ERROR)
    report.bar("diagnosis: transient said of a permanent cause", passing, "times", at_most=0)


def main() -> None:
    chosen = arguments(__doc__ or "", texts={"data": "the folder that holds failures/ (default: $HOLDFAST_DATA)"})
    report = Report("Diagnosis, as before")
    with scratch_directory(keep=chosen.keep) as scratch:
        measure(report, chosen, scratch)
    report.finish(chosen)


if __name__ == "__main__":
    main()
