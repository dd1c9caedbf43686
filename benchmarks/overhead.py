"""Overhead: what training costs more with Holdfast than without it.

Step time: one job, and in it blocks of the same steps in the same processes. Without: the bare loop, and every process of Holdfast (run,
control, agent) is stopped with SIGSTOP. With: the loop inside `run.steps` with `run.report`, and all of them at work. Blocks are short, a fifth of a second,
and come in mirrored pairs (without, with, with, without, or the other way round, by lot), so that a machine that grows slower or faster meanwhile does so for
both. What counts is the upper 95 % bound of the mean of all paired differences. The mean without the tenth at either end is shown beside it and decides
nothing. Saving is not in it: it has costs of its own, which `holdfast show` itemises.

And: the time of one beat, and of `import holdfast`.
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, mean_upper_bound, median, say
from harness.processes import Process, cpu_s, kill, wait_until

from holdfast.domain.beat import BEAT_BYTES
from holdfast.trainer.beats import Beats, open_beats

STEP_S = 0.0125  # The bar is for steps of 10 ms and more; a little above it, so that no block falls below.
SETTLE_S = 0.05  # Whoever was stopped may have something to catch up on. Before every block, so that all begin alike.
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
        pairs=(240, 120, "mirrored pairs of blocks, for each number of ranks"),
        steps=(16, 16, "steps in a block"),
        imports=(15, 7, "fresh interpreters that import holdfast"),
    )
    random.seed(chosen.seed)
    report = Report("Overhead: what training costs more with Holdfast")
    beat(report)
    imports(report, chosen.imports)
    with scratch_directory(keep=chosen.keep) as scratch:
        for ranks in (1, 2):
            step_time(report, scratch, ranks=ranks, pairs=chosen.pairs, steps=chosen.steps)
    report.finish(chosen)


# Step time.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    wall_s: float  # Of the slowest rank.
    cpu_s: float  # Of all ranks together.


class Blocks:
    """A job that runs blocks of steps when told to."""

    def __init__(self, job: Job, steps: int) -> None:
        self._job, self._steps = job, steps
        self._number = 0
        wait_until(lambda: self._answers() is not None, within_s=300, what=f"the ranks of {job.name}; it said:\n{job.last_words()}")
        self._ours = job.find("holdfast.cli", "run") + job.find("holdfast.control") + job.find("holdfast.agent")
        self.watched_s = 0.0
        self.used_s = {name_of(one): 0.0 for one in self._ours}

    def plain(self) -> StepTime:
        """What a step takes without Holdfast."""
        self._signal_ours(signal.SIGSTOP)
        try:
            time.sleep(SETTLE_S)
            return self._block("plain")
        finally:
            self._signal_ours(signal.SIGCONT)

    def guarded(self) -> StepTime:
        """What it takes with it."""
        time.sleep(SETTLE_S)
        began, used = time.monotonic(), {one.pid: cpu_s(one.pid) for one in self._ours}
        step = self._block("guarded")
        self.watched_s += time.monotonic() - began
        for one in self._ours:
            self.used_s[name_of(one)] += cpu_s(one.pid) - used[one.pid]
        return step

    def end(self) -> None:
        self._tell("end")
        self._job.process.wait(60)

    def _block(self, kind: str) -> StepTime:
        self._tell(kind)
        answers: list[StepTime] = wait_until(self._answers, within_s=300, what=f"block {self._number} of {self._job.name}", every_s=0.01)
        return StepTime(wall_s=max(one.wall_s for one in answers) / self._steps, cpu_s=sum(one.cpu_s for one in answers) / self._steps)

    def _tell(self, kind: str) -> None:
        self._number += 1
        new = self._job.scratch / "go.new"
        new.write_text(f"{self._number} {kind} {self._steps}")
        new.replace(self._job.scratch / "go")

    def _answers(self) -> list[StepTime] | None:
        """What each rank measured for the newest block, once all have."""
        found = []
        for rank in range(self._job.world_size):
            path = self._job.scratch / f"blocks-{rank}"
            last = path.read_text().splitlines()[-1:] if path.exists() else []
            if not last or int(last[0].split()[0]) != self._number:
                return None
            found.append(StepTime(wall_s=float(last[0].split()[1]), cpu_s=float(last[0].split()[2])))
        return found

    def _signal_ours(self, signum: signal.Signals) -> None:
        for one in self._ours:
            kill(one.pid, signum)


def mean_of(one: StepTime, other: StepTime) -> StepTime:
    return StepTime(wall_s=(one.wall_s + other.wall_s) / 2, cpu_s=(one.cpu_s + other.cpu_s) / 2)


def trimmed(values: list[float]) -> list[float]:
    """Without the tenth at either end."""
    cut = len(values) // 10
    return sorted(values)[cut : len(values) - cut]


def name_of(process: Process) -> str:
    return next(name for name in ("control", "agent", "cli") if f"holdfast.{name}" in process.command)


def step_time(report: Report, scratch: Path, *, ranks: int, pairs: int, steps: int) -> None:
    without: list[StepTime] = []
    within: list[StepTime] = []
    with Job(scratch, f"blocks-{ranks}", "blocks.py", str(STEP_S), nproc=ranks) as job:
        blocks = Blocks(job, steps)
        for number in range(pairs):
            if random.random() < 0.5:
                first, second, third, fourth = blocks.plain(), blocks.guarded(), blocks.guarded(), blocks.plain()
                without.append(mean_of(first, fourth))
                within.append(mean_of(second, third))
            else:
                first, second, third, fourth = blocks.guarded(), blocks.plain(), blocks.plain(), blocks.guarded()
                without.append(mean_of(second, third))
                within.append(mean_of(first, fourth))
            if (number + 1) % 20 == 0:
                say(f"{ranks} ranks, pair {number + 1} of {pairs}: {1e3 * without[-1].wall_s:.2f} ms without, {1e3 * within[-1].wall_s:.2f} ms with")
        blocks.end()
        incidents = len(job.incidents())
    tell_step_time(report, ranks, without, within, blocks)
    if incidents:
        report.note(f"The job with {ranks} ranks had {incidents} incidents, which spoils its figures.")


def tell_step_time(report: Report, ranks: int, without: list[StepTime], within: list[StepTime], blocks: Blocks) -> None:
    name = f"{ranks} rank{'s' if ranks > 1 else ''}"
    differences = [100 * (b.wall_s - a.wall_s) / a.wall_s for a, b in zip(without, within, strict=True)]
    cpu_differences = [100 * (b.cpu_s - a.cpu_s) / a.cpu_s for a, b in zip(without, within, strict=True)]
    report.series(f"{name}: a step without Holdfast", "ms", [1e3 * one.wall_s for one in without])
    report.series(f"{name}: a step with Holdfast", "ms", [1e3 * one.wall_s for one in within])
    middle = trimmed(differences)
    means = f"mean {statistics.fmean(differences):+.2f} %, trimmed {statistics.fmean(middle):+.2f} % (bound {mean_upper_bound(middle):.2f} %)"
    report.series(f"{name}: paired difference", "%", differences, means)
    report.series(f"{name}: paired difference of the workers' own CPU time", "%", cpu_differences, f"mean {statistics.fmean(cpu_differences):+.2f} %")
    for process, used_s in sorted(blocks.used_s.items()):
        share = 100 * used_s / blocks.watched_s
        report.raw[f"{name}: CPU of {process}, % of a core"] = share
        report.note(f"{name}: {'holdfast run' if process == 'cli' else process} used {share:.2f} % of one core.")
    report.bar(f"{name}: step time, upper 95 % bound of the mean paired difference", mean_upper_bound(differences), "%", under=1.0)


# A beat, and the import.


def beat(report: Report) -> None:
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.NamedTemporaryFile(dir=where) as file:
        file.write(bytes(BEAT_BYTES))
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
