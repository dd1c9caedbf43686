"""The first start: how long from the command to the first line of a script on 2 ranks?

Two scripts, one that only imports torch and one whose ranks find each other (DDP's process group, gloo, one all_reduce), three ways, taking turns: torchrun,
`holdfast run`, and `holdfast run --no-warm`. The script itself writes down when it has come so far; the slower rank counts.

And whether a death is told as fast in the first generation, whose ranks import for themselves, as in the second, whose ranks are forks of the template: one
rank is killed in each, and the clock runs until the journal has the exit.
"""

from __future__ import annotations

import random
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from harness.jobs import Gang, Job, Torchrun, scratch_directory
from harness.measure import Report, arguments, median, say
from harness.processes import kill, wait_until

from holdfast.domain.event import WorkerExited

RANKS = 2
TORCHRUN, OURS, COLD = "torchrun", "holdfast run", "holdfast run --no-warm"
WAYS: dict[str, Callable[..., Gang]] = {
    TORCHRUN: lambda scratch, name, *how: Torchrun(scratch, name, "first_line.py", *how, nproc=RANKS),
    OURS: lambda scratch, name, *how: Job(scratch, name, "first_line.py", *how, nproc=RANKS),
    COLD: lambda scratch, name, *how: Job(scratch, name, "first_line.py", *how, nproc=RANKS, options=("--no-warm",)),
}
SCRIPTS = {"trivial script": (), "trivial DDP script": ("ddp",)}


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        rounds=(10, 3, "launches each way of each script"),
        kills=(20, 5, "launches with a kill in the first generation and one in the second"),
    )
    random.seed(chosen.seed)
    report = Report("First start: from the command to the first line of the script on both ranks")
    with scratch_directory(keep=chosen.keep) as scratch:
        first_lines(report, scratch, chosen)
        deaths(report, scratch, chosen.kills)
    report.finish(chosen)


def first_lines(report: Report, scratch: Path, chosen: Namespace) -> None:
    took: dict[tuple[str, str], list[float]] = {(script, way): [] for script in SCRIPTS for way in WAYS}
    for number in range(chosen.rounds):
        for script, how in SCRIPTS.items():
            for way, launch in WAYS.items():
                began = time.monotonic()
                with launch(scratch, f"{'-'.join(('start', *how))}-{number}-{list(WAYS).index(way)}", *how) as gang:
                    gang.wait_for_steps(1)
                    first = gang.steps.first_since(set())
                    assert first is not None
                    took[script, way].append(max(line.at for line in first.values()) - began)
                    gang.process.wait(60)
        say(f"round {number + 1} of {chosen.rounds}: " + ", ".join(f"{way}, {script} {values[-1]:.2f} s" for (script, way), values in took.items()))
    for (script, way), values in took.items():
        report.series(f"{script}: {way}", "s", values)
    for script in SCRIPTS:
        ours, peer = median(took[script, OURS]), median(took[script, TORCHRUN])
        report.bar(f"{script}: as long as under torchrun", ours / peer if ours and peer else None, "times", at_most=1.2)


def deaths(report: Report, scratch: Path, launches: int) -> None:
    told: dict[int, list[float]] = {1: [], 2: []}
    for number in range(launches):
        with Job(scratch, f"death-{number}", "first_line.py", "stay", nproc=RANKS) as job:
            old: set[int] = set()
            for generation, values in told.items():
                job.wait_for_steps(1, old=old)
                wait_until(lambda: (state := job.state()) is not None and state.gang is not None and state.gang.ready, within_s=60, what="a gang that is up")
                old = job.steps.pids()
                time.sleep(random.uniform(0.0, 0.5))
                at = time.time()
                kill(job.steps.newest_pids()[random.randrange(RANKS)], signal.SIGKILL)
                seen: list[float] = wait_until(lambda g=generation: exits_of(job, g), within_s=60, what="an exit in the journal")
                values.append(seen[0] - at)
        say(f"launch {number + 1} of {launches}: an exit is told after " + ", ".join(f"{1000 * values[-1]:.0f} ms" for values in told.values()))
    for generation, values in told.items():
        report.series(f"a death is told, generation {generation}", "ms", [1000 * value for value in values])
    first, second = (median(values) for values in told.values())
    report.bar("a death in the first generation is told later by", 1000 * (first - second) if first and second else None, "ms", under=20)


def exits_of(job: Job, generation: int) -> list[float]:
    return [entry.event.at for entry in job.entries() if isinstance(entry.event, WorkerExited) and entry.event.generation == generation]


if __name__ == "__main__":
    main()
