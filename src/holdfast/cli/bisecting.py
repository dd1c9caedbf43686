"""`holdfast bisect`: short runs of a job from one of its checkpoints, each with one hyper-parameter changed, and a report of which mattered.

    the job's checkpoint ─► linked into a state directory of their own ─► unchanged, unchanged again, one run for each change, in turn ─► losses ─► `compare`

The job itself is only read: its journal, its checkpoints and its name stay as they are, and all that the runs left is removed at the end.

Is wrong    about what the script itself writes elsewhere: it is the same script, and writes it again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.cli import png
from holdfast.cli.job import is_held, state_of
from holdfast.cli.spark import sparkline
from holdfast.cli.words import one_line
from holdfast.diagnose.bisection import Bisection, Effect, compare
from holdfast.domain.job import JobSpec
from holdfast.domain.treatment import Treatment
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.trainer.tuning import read

UNCHANGED: Final = "unchanged"
_CELLS: Final = 40  # Of a curve in the table.


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for."""

    changes: tuple[str, ...]
    steps: int
    from_step: int | None = None  # None: the newest checkpoint.
    repeats: int = 2
    within_s: float  # Each run.
    beside: bool = False  # Also while the job runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    job: str
    checkpoint: str
    step: int
    steps: int
    curves: dict[str, dict[int, float]] = field(default_factory=dict)  # Those of the unchanged runs have a number behind their name.
    found: Bisection


def bisect(directory: JobDirectory, wish: Wish, say: Callable[[str], None]) -> Report:
    """Raises UserError for what cannot be tried, and HoldfastError for a run that did not come to its end."""
    changes = checked(wish.changes)
    if is_held(directory) and not wish.beside:
        raise UserError(f"job {directory.job!r} is running, and the runs would take its machine from it: stop it first, or pass --beside if there is room")
    state = state_of(directory)
    assert state.spec is not None
    start = _checkpoint(directory, wish.from_step)
    runs = {**{f"{UNCHANGED} {number}": "" for number in range(1, wish.repeats + 1)}, **{change: change for change in changes}}
    curves: dict[str, dict[int, float]] = {}
    root = Path(tempfile.mkdtemp(prefix="bisect-", dir=directory.path.parent.parent))  # The same file system, for links, and a short path, for sockets.
    try:
        for number, (name, change) in enumerate(runs.items(), start=1):
            say(f"run {number} of {len(runs)}: {name}")
            curves[name] = _run(root, f"run-{number}", state.spec, state.treatment, start, change, wish)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    found = compare([curves[name] for name, change in runs.items() if not change], {change: curves[change] for change in changes})
    return Report(job=directory.job, checkpoint=start.name, step=start.step, steps=wish.steps, curves=curves, found=found)


def checked(changes: Sequence[str]) -> tuple[str, ...]:
    """One change each, none twice."""
    for change in changes:
        if len(read(change)) != 1:
            raise UserError(f"--change {change!r}: expected one NAME=VALUE or NAME=*FACTOR, since each run changes one thing; give --change again for another")
    again = next((change for change in changes if changes.count(change) > 1), None)
    if again is not None:
        raise UserError(f"--change {again} is given twice; --repeats says how often the unchanged run is repeated")
    if not changes:
        raise UserError('nothing is to be changed: give --change at least once, such as --change "lr=*0.5"')
    return tuple(changes)


def _checkpoint(directory: JobDirectory, step: int | None) -> CheckpointFound:
    complete = list_complete(directory.checkpoints)
    if not complete:
        raise UserError(f"job {directory.job!r} has no complete checkpoint on this disk to begin from")
    found = complete[0] if step is None else next((one for one in complete if one.step == step), None)
    if found is None:
        steps = ", ".join(str(one.step) for one in sorted(complete, key=lambda one: one.step))
        raise UserError(f"job {directory.job!r} has no complete checkpoint of step {step}; there are {steps}")
    return found


def _run(root: Path, name: str, spec: JobSpec, treatment: Treatment, start: CheckpointFound, change: str, wish: Wish) -> dict[int, float]:
    """One run from the checkpoint, to its end; its losses by step."""
    child = JobDirectory(root / "jobs" / name)
    _link(start, child.checkpoints)
    curve, log = root / f"{name}.curve", root / f"{name}.log"
    told = treatment.environment()
    tuned = {**read(told.get("HOLDFAST_TUNE", "")), **read(change)}
    environment = {
        **os.environ, **told, "HOLDFAST_TUNE": ",".join(f"{one}={value}" for one, value in tuned.items()), "HOLDFAST_UNTIL": str(start.step + wish.steps),
        "HOLDFAST_CURVE": str(curve),
    }  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(_command(root, name, spec), cwd=spec.cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            code = process.wait(wish.within_s)
        except BaseException as error:
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            late = f"the run with {change or UNCHANGED} was not done after {wish.within_s:.0f} s"
            raise HoldfastError(f"{late}: give fewer --steps, or more time with --within") from None
    found = _curve(curve)
    if code and not found:
        logs = [path for path in (*child.logs.glob("rank-0.log"), log) if path.exists()]
        said = "\n".join(path.read_text(errors="replace")[-2000:] for path in logs)
        raise HoldfastError(f"the run with {change or UNCHANGED} failed with code {code}:\n{said}")
    return found


def _command(root: Path, name: str, spec: JobSpec) -> list[str]:
    """As the job is run, but that nothing is learned, saved, done again or treated: what a change does is to be seen."""
    options = ["--state", root, "--name", name, "--nnodes", spec.nodes, "--nproc-per-node", spec.ranks_per_node, "--checkpoint-every", 0, "--max-restarts", 0]
    options += ["--never", "roll_back", "--no-learning", "--no-profile"]
    options += [*(["--module"] if spec.module else []), *([] if spec.python else ["--no-python"]), *([] if spec.warm else ["--no-warm"])]
    options += [*(["--gpus", ",".join(map(str, spec.gpus))] if spec.gpus else []), *(word for one in spec.preimport for word in ("--preimport", one))]
    options += [word for one in spec.stage for word in ("--stage", f"{one.source}={one.target}")]
    return [sys.executable, "-m", "holdfast.cli", "run", *map(str, options), *spec.argv]


def _link(start: CheckpointFound, target: Path) -> None:
    """The checkpoint, and what is left of all before it: it may share their chunks. What is removed meanwhile was not needed by it."""
    target.mkdir(parents=True, mode=0o700)
    for path in list_directories(start.path.parent):
        step, generation = parse_directory_name(path.name) or (0, 0)
        if (generation, step) <= start.age_key:
            with contextlib.suppress(FileNotFoundError, shutil.Error):
                shutil.copytree(path, target / path.name, copy_function=os.link)
    if not any(one.name == start.name for one in list_complete(target)):
        raise HoldfastError(f"{start.name} was removed while it was looked at: try again")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Twice asked, it leaves without grace."""
    for signum in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)


def _curve(path: Path) -> dict[int, float]:
    found: dict[int, float] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            step, _, loss = line.partition(" ")
            with contextlib.suppress(ValueError):  # The last line of a rank that was killed may be half a line.
                found[int(step)] = float(loss)
    return found


# What is shown.


def shown(report: Report) -> RenderableType:
    found = report.found
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(word, style="dim") for word in ("", "loss at the end", "moves it by", "times the noise", "loss over the steps")))
    for name, curve in report.curves.items():
        if name.startswith(UNCHANGED):
            table.add_row(name, _number(compare([curve], {}).unchanged), "", "", _drawn(curve))
    for one in found.effects:
        moves = f"{one.moves:+.3g}" if isfinite(one.moves) else one.says
        times = f"{one.times:.1f}" if isfinite(one.times) else "–"
        table.add_row(Text(one_line(one.change), style="bold" if one.matters else ""), _number(one.loss), moves, times, _drawn(report.curves[one.change]))
    head = f"{report.job} from {report.checkpoint}, {report.steps} steps each; noise {found.noise:.3g}"
    return Group(Text(head), Text(""), table, Text(""), Text(found.says, style="bold"))


def _number(value: float) -> str:
    return f"{value:.4g}" if isfinite(value) else "not finite"


def _drawn(curve: dict[int, float]) -> str:
    return sparkline([value for _, value in sorted(curve.items())], _CELLS)


def as_json(report: Report) -> dict[str, Any]:
    found = report.found
    return {
        "job": report.job, "checkpoint": report.checkpoint, "step": report.step, "steps": report.steps, "says": found.says,
        "unchanged": _finite(found.unchanged), "noise": _finite(found.noise), "effects": [_effect_json(one) for one in found.effects],
        "curves": {name: {str(step): _finite(loss) for step, loss in sorted(curve.items())} for name, curve in report.curves.items()},
    }  # fmt: skip


def _effect_json(one: Effect) -> dict[str, Any]:
    return {
        "change": one.change, "loss": _finite(one.loss), "moves": _finite(one.moves), "times": _finite(one.times), "matters": one.matters, "says": one.says,
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def draw(report: Report, path: Path) -> None:
    figure = png.empty(10, 6, f"{report.job} from {report.checkpoint}: {report.found.says}")
    axes = figure.subplots()
    for name, curve in report.curves.items():
        steps = sorted(curve)
        axes.plot(steps, [curve[step] for step in steps], label=name, color="grey" if name.startswith(UNCHANGED) else None)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    png.save(figure, path)
