"""Out of memory: a job that needs four times the memory it has, beside the same one with enough.

First the job runs with all the memory there is, and the most that it reserved is what it needs. Then it may have a quarter of that. It must end with the
samples of every step the same, each once an epoch, and with the losses of the first one to within the noise of sums in another order. On a GPU the limit is
torch's own; without one a pretended card is counted by hand, and only the path from the error to the next try is real.
"""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, say

from holdfast.domain.diagnosis import Cause

NEEDS_TIMES = 4
NOISE = 0.01  # Of a loss.
SAMPLES, BATCH = 640, 64  # Of the script.


def main() -> None:
    chosen = arguments(__doc__ or "", steps=(200, 40, "optimizer steps"))
    report = Report("Out of memory")
    with scratch_directory(keep=chosen.keep) as scratch:
        enough, code, _ = train(chosen, scratch, "enough", 0)
        if code != 0 or not enough:
            raise SystemExit(f"the job with enough memory left with code {code}: run it with --keep and read its log")
        needs = max(row["peak_bytes"] for row in enough)
        say(f"with enough memory: {len(enough)} steps, {needs / 2**20:.1f} MiB reserved at most")
        short, code, job = train(chosen, scratch, "short", needs // NEEDS_TIMES)
        tell(report, enough, short, code, needs, job)
    report.finish(chosen)


def train(chosen: Namespace, scratch: Path, name: str, limit_bytes: int) -> tuple[list[dict[str, Any]], int, Job]:
    """The last line about each step, and the exit code."""
    with Job(scratch, name, "short_of_memory.py", str(chosen.steps), str(limit_bytes)) as job:
        try:
            code = job.process.wait(1800)
        except subprocess.TimeoutExpired:
            code = -1
    path = job.scratch / "steps"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for _, row in sorted({row["step"]: row for row in rows}.items())], code, job


def tell(report: Report, enough: list[dict[str, Any]], short: list[dict[str, Any]], code: int, needs: int, job: Job) -> None:
    incidents = job.incidents()
    diagnoses = [diagnosis for incident in incidents for diagnosis in incident.diagnoses]
    tried = [diagnosis.micro_batch for diagnosis in diagnoses if diagnosis.cause is Cause.OUT_OF_MEMORY]
    both = list(zip(enough, short, strict=False))
    worst = max((abs(one["loss"] - other["loss"]) / abs(one["loss"]) for one, other in both), default=None)
    other_samples = sum(sorted(one["ids"]) != sorted(other["ids"]) for one, other in both) + abs(len(enough) - len(short))
    per_epoch = SAMPLES // BATCH
    epochs = [[id for row in short[first : first + per_epoch] for id in row["ids"]] for first in range(0, len(short) - per_epoch + 1, per_epoch)]
    report.series("time lost to an incident", "s", [sum(incident.costs.values()) for incident in incidents])
    report.series("losses: difference from the job with enough memory, of the loss", "", [abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in both])
    expandable = job.scratch / "expandable"
    batches = f"at the end in {short[-1]['batches']} batches a step" if short else "it made no step"
    report.note(f"{needs / 2**20:.1f} MiB needed, {needs / NEEDS_TIMES / 2**20:.1f} MiB given. Did not fit, samples at once: {tried}; {batches}.")
    report.note(f"Expandable segments at the end: {expandable.read_text() if expandable.exists() else 'no GPU'}.")
    report.note(f"First words: {diagnoses[0].because}" if diagnoses else "Nothing failed.")
    report.raw |= {"enough": enough, "short": short, "tried": tried, "plans": [plan.because for incident in incidents for plan in incident.plans]}
    report.bar("exit code", code, "", at_least=0, at_most=0)
    report.bar("memory that is needed, over what there is", needs / (needs // NEEDS_TIMES), "times", at_least=NEEDS_TIMES)
    report.bar("tries that ran out of memory", len(tried), "tries", at_least=1, at_most=8)
    report.bar("tries like one before", len(tried) - len(set(tried)), "tries", at_most=1)  # One more at the same size may be of other segments.
    report.bar("steps with other samples than with enough memory", other_samples, "steps", at_most=0)
    report.bar("epochs in which a sample is missing or comes twice", sum(sorted(epoch) != list(range(SAMPLES)) for epoch in epochs), "epochs", at_most=0)
    report.bar("largest difference of a loss, of the loss", worst, "", at_most=NOISE)


if __name__ == "__main__":
    main()
