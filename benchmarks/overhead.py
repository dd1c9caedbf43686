"""Overhead: what training costs more with Holdfast than without it.

Step time: one job, and in it blocks of the same steps in the same processes. Without: the bare loop, and every process of Holdfast (run,
control, agent) is stopped with SIGSTOP. With: the loop inside `run.steps` with `run.report`, and all of them at work; what they could not do while they were
stopped falls into these blocks too. A CPU changes its speed by a tenth from second to second, so blocks are two steps long and come in mirrored pairs
(without, with, with, without, or the other way round, by lot): the shorter a block, the more alike what happens to both. On a GPU every step ends
with a wait for the device, so that nothing of what our lines take can hide behind it.

What counts is the upper 95 % bound of the mean of all paired differences, over the mean step without Holdfast. (A mean of ratios would count noise as overhead:
the same slow moment weighs more above a fraction than below it.) Saving is not in it: it has costs of its own, which `holdfast show` itemises.

And: the time of one beat, and of `import holdfast`.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, mean_upper_bound, median, say
from harness.processes import Process, cpu_s, kill, wait_until

from holdfast.domain.beat import BEAT_FILE_BYTES
from holdfast.trainer.beats import Beats, open_beats

STEP_S = 0.0125  # The bar is for steps of 10 ms and more; a little above it, so that no block falls below.
PROGRESS = 100  # Pairs between two lines of progress.
IMPORT = """
import sys, time
began = time.perf_counter()
import holdfast
imported = time.perf_counter()
holdfast.guard, holdfast.Sampler
print(imported - began, time.perf_counter() - began, *({"torch", "numpy", "msgspec"} & set(sys.modules)))
"""


def main() -> None:
    chosen = arguments(
        __doc__ or "",
        cpu_pairs=(1500, 500, "mirrored pairs of blocks on the CPU, for each number of ranks"),
        gpu_pairs=(1500, 500, "mirrored pairs of blocks on the GPU"),
        steps=(2, 2, "steps in a block"),
        imports=(15, 7, "fresh interpreters that import holdfast"),
    )
    report = Report("Overhead: what training costs more with Holdfast")
    beat(report)
    imports(report, chosen.imports)
    cases = [Case("cpu", ranks=1, pairs=chosen.cpu_pairs), Case("cpu", ranks=2, pairs=chosen.cpu_pairs)]
    if Path("/dev/nvidia0").exists():
        cases.append(Case("cuda", ranks=1, pairs=chosen.gpu_pairs))
    else:
        report.note("No NVIDIA GPU is here, so the case on a GPU was left out.")
    with scratch_directory(keep=chosen.keep) as scratch:
        for case in cases:
            if case.pairs:
                step_time(report, scratch, case, chosen)
    report.finish(chosen)


# Step time.


@dataclass(frozen=True, slots=True)
class Case:
    device: str
    ranks: int
    pairs: int

    def __str__(self) -> str:
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''} on the {'GPU' if self.device == 'cuda' else 'CPU'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of a step. Wall: of the slowest rank. CPU: of all ranks together."""

    without_wall_s: float
    with_wall_s: float
    without_cpu_s: float
    with_cpu_s: float


def step_time(report: Report, scratch: Path, case: Case, chosen: Namespace) -> None:
    with Job(scratch, f"blocks-{case.device}-{case.ranks}", "blocks.py", str(STEP_S), case.device, nproc=case.ranks) as job:
        answers = [job.scratch / f"blocks-{rank}" for rank in range(case.ranks)]
        wait_until(lambda: all(one.exists() for one in answers), within_s=300, what=f"the ranks of {job.name}; it said:\n{job.last_words()}")
        ours = job.find("holdfast.cli", "run") + job.find("holdfast.control") + job.find("holdfast.agent")
        used_s = {name_of(one): -cpu_s(one.pid) for one in ours}
        try:
            tell(job.scratch / "go", f"{case.pairs} {chosen.steps} {chosen.seed} {' '.join(str(one.pid) for one in ours)}")
            for done in range(PROGRESS, case.pairs + 1, PROGRESS):
                pair = wait_until(lambda wanted=done: nth_pair(answers, wanted, chosen.steps), within_s=300, what=f"pair {done} of {job.name}", every_s=1.0)
                say(f"{case}, pair {done} of {case.pairs}: {1e3 * pair.without_wall_s:.2f} ms without, {1e3 * pair.with_wall_s:.2f} ms with")
            wait_until(lambda: nth_pair(answers, case.pairs, chosen.steps), within_s=300, what=f"the last pair of {job.name}")
            for one in ours:
                used_s[name_of(one)] += cpu_s(one.pid)
            (job.scratch / "go").unlink()
        finally:
            for one in ours:
                kill(one.pid, signal.SIGCONT)
        job.process.wait(60)
        pairs = [pair for number in range(case.pairs) if (pair := nth_pair(answers, number + 1, chosen.steps)) is not None]
        incidents = len(job.incidents())
    tell_step_time(report, case, pairs, used_s, watched_s=sum(2 * chosen.steps * pair.with_wall_s for pair in pairs))
    if incidents:
        report.note(f"{case}: the job had {incidents} incidents, which spoils its figures.")


def tell(path: Path, text: str) -> None:
    """Whole or not at all: somebody is waiting for it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def nth_pair(answers: Sequence[Path], number: int, steps: int) -> Pair | None:
    """Of all ranks together, once all have measured it."""
    lines = [path.read_text().splitlines() for path in answers]
    if any(len(one) < number for one in lines):
        return None
    fields = [one[number - 1].split() for one in lines]
    walls = [max(float(one[1 + 2 * block]) for one in fields) for block in range(4)]
    cpus = [sum(float(one[2 + 2 * block]) for one in fields) for block in range(4)]
    outer, inner = (walls[0] + walls[3], cpus[0] + cpus[3]), (walls[1] + walls[2], cpus[1] + cpus[2])
    without, within = (outer, inner) if fields[0][0] == "plain" else (inner, outer)
    each = 2 * steps
    return Pair(without_wall_s=without[0] / each, with_wall_s=within[0] / each, without_cpu_s=without[1] / each, with_cpu_s=within[1] / each)


def name_of(process: Process) -> str:
    return next(name for name in ("control", "agent", "cli") if f"holdfast.{name}" in process.command)


def tell_step_time(report: Report, case: Case, pairs: list[Pair], used_s: dict[str, float], watched_s: float) -> None:
    step_s, step_cpu_s = statistics.fmean(one.without_wall_s for one in pairs), statistics.fmean(one.without_cpu_s for one in pairs)
    differences = [100 * (one.with_wall_s - one.without_wall_s) / step_s for one in pairs]
    cpu_differences = [100 * (one.with_cpu_s - one.without_cpu_s) / step_cpu_s for one in pairs]
    report.series(f"{case}: a step without Holdfast", "ms", [1e3 * one.without_wall_s for one in pairs])
    report.series(f"{case}: a step with Holdfast", "ms", [1e3 * one.with_wall_s for one in pairs])
    report.series(f"{case}: paired difference", "%", differences, f"mean {statistics.fmean(differences):+.2f} %")
    report.series(f"{case}: paired difference of the workers' own CPU time", "%", cpu_differences, f"mean {statistics.fmean(cpu_differences):+.2f} %")
    for process, spent_s in sorted(used_s.items()):
        share = 100 * spent_s / watched_s
        report.raw[f"{case}: CPU of {process}, % of a core"] = share
        report.note(f"{case}: {'holdfast run' if process == 'cli' else process} used {share:.2f} % of one core.")
    report.bar(f"{case}: step time, upper 95 % bound of the mean paired difference", mean_upper_bound(differences), "%", under=1.0)


# A beat, and the import.


def beat(report: Report) -> None:
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.NamedTemporaryFile(dir=where) as file:
        file.write(bytes(BEAT_FILE_BYTES))
        file.flush()
        beats = open_beats(Path(file.name))
        samples = [time_beats(beats, 5_000) for _ in range(101)]  # Each shorter than a time slice, so that the median is undisturbed.
    report.series("a beat", "µs", samples, "as at the end of a step, the loop around it included")
    report.bar("a beat", median(samples), "µs", under=2.0)


def time_beats(beats: Beats, count: int) -> float:
    """Microseconds each."""
    began = time.perf_counter()
    for number in range(count):
        beats.step = number
        beats.enter("step")
    return 1e6 * (time.perf_counter() - began) / count


def imports(report: Report, count: int) -> None:
    """The names are fetched when they are first used, and what counts is the time until they are there: a training script uses them."""
    bare: list[float] = []
    used: list[float] = []
    heavy: set[str] = set()
    for _ in range(count + 1):
        answer = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout.split()
        bare.append(1e3 * float(answer[0]))
        used.append(1e3 * float(answer[1]))
        heavy |= set(answer[2:])
    said = f"imports {', '.join(sorted(heavy))}" if heavy else "without torch, numpy or msgspec"
    report.series("import holdfast", "ms", bare[1:])  # The first may have compiled it.
    report.series("import holdfast, and all its names", "ms", used[1:], said)
    report.bar("import holdfast, and all its names", median(used[1:]), "ms", under=50.0)
    report.bar("import holdfast: torch in sys.modules", int("torch" in heavy), "times", at_most=0)


if __name__ == "__main__":
    main()
