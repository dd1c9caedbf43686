"""Figures: for 20 runs, with our lines and without, each figure that is shown is within 2 points of the script's own log, or a dash.

The script (`scripts/logs_steps.py`) writes down when it enters its loop and when it finishes each step. What is true is computed from that alone: time spent on
new steps and on steps done before, how far every rank was, when a rank died and when all had finished a step again. It is held against `show --json` and the
end lines of `run`, once while the job runs and once when it is over. A point is a hundredth of the time the job was run, of the steps, or of the wall time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.jobs import SCRIPTS, scratch_directory
from harness.measure import Report, arguments, say
from harness.processes import Launched, wait_until

from holdfast.checkpoint.found import newest_complete
from holdfast.launch.layout import JobDirectory

POINTS = 2.0
_WITHIN_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`stop`: what is done to the launcher once all ranks have finished `stop_at` steps; the job is then resumed, if `resumed`."""

    name: str
    steps: int = 240
    step_s: float = 0.05
    plain: bool = False
    die: tuple[str, ...] = ()
    stop: signal.Signals | None = None
    stop_at: int = 0
    resumed: bool = False
    ranks: int = 2


_KILL, _CTRL_C = signal.SIGKILL, signal.SIGINT
CASES = (
    Case(name="calm"),
    Case(name="calm, plain", plain=True),
    Case(name="killed", die=("1:140:1",)),
    Case(name="killed, plain", die=("1:140:1",), plain=True),
    Case(name="lost", stop=_KILL, stop_at=150, steps=400),
    Case(name="stopped and resumed", stop=_CTRL_C, stop_at=130, resumed=True),
    Case(name="short", steps=40),
    Case(name="short, plain", steps=40, plain=True),
    Case(name="one rank", ranks=1),
    Case(name="slow steps", steps=40, step_s=0.5),
    Case(name="killed late", die=("1:199:0",)),
    Case(name="killed early", die=("1:5:0",)),
    Case(name="killed twice", die=("1:90:1", "2:170:0")),
    Case(name="killed twice, plain", die=("1:90:1", "2:60:0"), plain=True, steps=120),
    Case(name="killed, slow steps", die=("1:33:1",), steps=50, step_s=0.4),
    Case(name="lost and resumed", stop=_KILL, stop_at=140, resumed=True),
    Case(name="killed and stopped", die=("1:60:1",), stop=_CTRL_C, stop_at=150),
    Case(name="long, plain", plain=True, steps=800),
    Case(name="lost, plain", plain=True, stop=_KILL, stop_at=100, steps=400),
    Case(name="stopped, plain", plain=True, stop=_CTRL_C, stop_at=100, steps=400),
)
QUICK = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What really happened, by the log of the script."""

    new_s: float = 0.0  # From step to step, of steps that no rank had done before.
    again_s: float = 0.0
    step: int = -1  # The last that every rank has finished, in the newest generation,
    best: int = -1  # and in any.
    gaps: tuple[float, ...] = ()  # From each death until all ranks had finished a step again,
    again_after: tuple[float, ...] = ()  # and how long steps were done again after each.
    began_at: float = 0.0
    ended_at: float = 0.0


@dataclass(slots=True)
class Told:
    """One figure that was shown: how far it is from the truth, in points; None: a dash."""

    case: str
    figure: str
    shown: float | None
    true: float | None
    off: float | None


@dataclass(slots=True)
class Ran:
    case: Case
    scratch: Path
    told: list[Told] = field(default_factory=list)

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "-", self.case.name)

    def hold(self, figure: str, shown: float | None, true: float | None, whole: float) -> None:
        """A dash is right wherever it stands. A number is not where the truth cannot be known to anybody but the script."""
        off = None if shown is None else 100.0 if true is None else 100.0 * abs(shown - true) / whole
        self.told.append(Told(case=self.case.name, figure=figure, shown=shown, true=true, off=off))

    def hold_between(self, figure: str, shown: float | None, low: float, high: float, whole: float) -> None:
        """The truth moved on while it was asked for."""
        self.hold(figure, shown, None if shown is None else min(max(shown, low), high), whole)


def measure(report: Report, chosen: argparse.Namespace, scratch: Path) -> None:
    cases = CASES[:QUICK] if chosen.quick else CASES
    told: list[Told] = []
    for case in cases:
        ran = _run(Ran(case=case, scratch=scratch))
        told += ran.told
        worst = max((one.off for one in ran.told if one.off is not None), default=0.0)
        say(f"{case.name}: {len(ran.told)} figures, {sum(one.shown is None for one in ran.told)} of them a dash; the farthest is {worst:.2f} points off")
    far = [one for one in told if one.off is not None and one.off > POINTS]
    report.series("figures shown: off by", "points", [one.off for one in told if one.off is not None])
    report.bar(f"figures shown of {len(cases)} runs: the farthest from the script's own log", max((one.off or 0.0 for one in told), default=None), "points",
               at_most=POINTS)  # fmt: skip
    named = [one.shown for one in told if "plain" in one.case and one.figure in _UNKNOWABLE]
    report.bar("scripts without our lines: numbers shown for what nobody can know", float(sum(one is not None for one in named)), "numbers", at_most=0)
    report.raw["figures"] = [{"case": one.case, "figure": one.figure, "shown": one.shown, "true": one.true, "off": one.off} for one in told]
    for one in far:
        report.note(f"{one.case}: {one.figure}: {one.shown:g} is shown, {one.true if one.true is None else f'{one.true:g}'} is true")


_UNKNOWABLE = ("goodput", "productive", "recompute", "step", "cost")


def _run(ran: Ran) -> Ran:
    case, own = ran.case, ran.scratch / ran.name
    own.mkdir(parents=True)
    words = [str(SCRIPTS / "logs_steps.py"), str(own), "--steps", str(case.steps), "--step-s", str(case.step_s), *(["--plain"] if case.plain else []),
             *(word for death in case.die for word in ("--die", death))]  # fmt: skip
    began = time.time()
    with _launched(ran, "run", "--nproc", str(case.ranks), *words) as launched:
        wait_until(lambda: _lived(own, case).best >= min(30, case.steps // 2), within_s=_WITHIN_S, what=f"steps of {ran.name}")
        _hold_now(ran, own, began)
        if case.stop is not None:
            wait_until(lambda: _lived(own, case).best >= case.stop_at, within_s=_WITHIN_S, what=f"{case.stop_at} steps of {ran.name}")
            launched.process.send_signal(case.stop)
        launched.process.wait(_WITHIN_S)
        wait_until(lambda: not launched.find("logs_steps") and not launched.find("holdfast.control"), within_s=60.0, what=f"the end of {ran.name}")
    ended, down_s = time.time(), 0.0
    if case.resumed:
        left_at = _lived(own, case).ended_at
        with _launched(ran, "resume") as launched:
            resumed_at = time.time()
            launched.process.wait(_WITHIN_S)
        ended, down_s = time.time(), resumed_at - left_at
    _hold_end(ran, own, began, ended, down_s)
    return ran


def _launched(ran: Ran, verb: str, *words: str) -> Launched:
    named = ["--name", ran.name, *words] if verb == "run" else [*words, ran.name]
    state = ["--state", str(ran.scratch / "state")]
    return Launched([sys.executable, "-m", "holdfast.cli", verb, *state, *named], log=ran.scratch / f"{ran.name}-{verb}.log", cwd=ran.scratch)


def _shown(ran: Ran) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "show", "--state", str(ran.scratch / "state"), "--json", ran.name], capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


# What is shown, against what is true.


def _hold_now(ran: Ran, own: Path, began: float) -> None:
    """While it runs: the step and the clock are as of now, and go on."""
    before, asked_at = _lived(own, ran.case), time.time()
    shown = _shown(ran)
    after = _lived(own, ran.case)
    # Readings and samples are some tenths of a second old.
    ran.hold_between("step", shown["step"], before.step - 1.0 / ran.case.step_s, after.step, ran.case.steps)
    least = asked_at - before.began_at
    ran.hold_between("run time", shown["run_s"], least, time.time() - began, shown["run_s"])
    if ran.case.plain:
        ran.hold("goodput", shown["goodput"], None, 1.0)


def _hold_end(ran: Ran, own: Path, began: float, ended: float, down_s: float) -> None:
    case, lived, shown = ran.case, _lived(own, ran.case), _shown(ran)
    run_s, buckets = shown["run_s"], {one["bucket"]: one["seconds"] for one in shown["ledger"]}
    known = not case.plain
    # The job begins a moment after its launcher and some time before the first line of its log, and ends a moment after the last.
    ran.hold_between("run time", run_s, lived.ended_at - lived.began_at - down_s, ended - began - down_s, run_s)
    ran.hold("goodput", shown["goodput"], lived.new_s / run_s if known else None, 1.0)
    ran.hold("productive", buckets.get("productive"), lived.new_s if known else None, run_s)
    ran.hold("recompute", buckets.get("recompute", 0.0 if known else None), lived.again_s if known else None, run_s)
    ran.hold("step", shown["step"], lived.step if known else None, case.steps)
    newest = newest_complete(JobDirectory(ran.scratch / "state" / "jobs" / ran.name).checkpoints)
    ran.hold("saved at", shown["saved_step"], newest.step if newest is not None else None, case.steps)
    broke = [incident for incident in shown["incidents"] if not incident["stands"]]
    for incident, gap_s, again_s in zip(broke, lived.gaps, lived.again_after, strict=False):
        ran.hold("cost", incident["seconds"], gap_s + again_s if known else None, run_s)
        if known:
            ran.hold("resolved after", incident["closed_at"] - incident["began_at"], gap_s, run_s)
    if case.stop is not signal.SIGKILL or case.resumed:
        _hold_lines(ran, shown)


def _hold_lines(ran: Ran, shown: dict[str, Any]) -> None:
    """The end lines say the same number as `show`."""
    said = (ran.scratch / f"{ran.name}-{'resume' if ran.case.resumed else 'run'}.log").read_text(errors="replace")
    found = re.search(r"^holdfast: goodput ([\d.]+) %", said, re.MULTILINE)
    ran.hold("goodput in the end lines", float(found[1]) / 100 if found else None, shown["goodput"], 1.0)
    if found is None and "goodput not known" not in said:
        ran.hold("a word on goodput in the end lines", 0.0, None, 1.0)


# What is true.


def _lived(own: Path, case: Case) -> Lived:
    """From the logs of all ranks: a step is finished when the slowest rank has finished it."""
    logs = [_events(own / f"log-{rank}") for rank in range(case.ranks)]
    if not all(logs):
        return Lived()
    new_s = again_s = 0.0
    best, step, gaps, after, deaths = -1, -1, [], [], sorted(at for log in logs for _, what, _, at in log if what == "dies")
    for generation in sorted({one[0] for log in logs for one in log}):
        mine = [[one for one in log if one[0] == generation] for log in logs]
        if not all(mine):
            break
        before = max(log[0][3] for log in mine)
        ends = [{number: at for _, what, number, at in log if what == "step"} for log in mine]
        finished = sorted(set.intersection(*(set(one) for one in ends)))
        if finished and len(gaps) < len(deaths) and generation > 1 and max(one[finished[0]] for one in ends) > deaths[len(gaps)]:
            gaps.append(max(one[finished[0]] for one in ends) - deaths[len(gaps)])
            after.append(0.0)
        for place, number in enumerate(finished):
            at = max(one[number] for one in ends)
            if number > best:
                new_s += at - before
            else:
                again_s += at - before
                if after and place:  # The first is in the time until all had finished a step.
                    after[-1] += at - before
            before = at
        step = finished[-1] if finished else step
        best = max(best, step)
    every = list(itertools.chain.from_iterable(logs))
    return Lived(
        new_s=new_s, again_s=again_s, step=step, best=best, gaps=tuple(gaps), again_after=tuple(after), began_at=min(one[3] for one in every),
        ended_at=max(one[3] for one in every),
    )  # fmt: skip


def _events(path: Path) -> list[tuple[int, str, int, float]]:
    """Whole lines of a log."""
    return list(_parsed(path.read_text().splitlines(keepends=True))) if path.exists() else []


def _parsed(lines: list[str]) -> Iterator[tuple[int, str, int, float]]:
    for line in lines:
        if line.endswith("\n"):
            generation, what, step, at = line.split()
            yield int(generation), what, int(step), float(at)


def main() -> None:
    chosen = arguments(__doc__ or "")
    report = Report("Figures: what is shown of a run, against the script's own log")
    with scratch_directory(keep=chosen.keep) as scratch:
        measure(report, chosen, scratch)
    report.finish(chosen)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
