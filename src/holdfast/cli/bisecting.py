"""`holdfast bisect`: short runs of a job from one of its checkpoints, each with one hyper-parameter changed, and a report of which mattered.

    the job's checkpoint ─► linked into a state directory of their own ─► trials, in turn: unchanged, again, one for each change ─► losses ─► `compare`

The job itself is only read: its journal, its checkpoints and its name stay as they are, and all that the trials left is removed at the end. Where
the bisection itself was killed its trial ends with it, and the next one removes the rest.

Is wrong    about what the script itself writes elsewhere: it is the same script, and writes it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from holdfast.checkpoint.found import CheckpointFound, list_complete, list_directories
from holdfast.checkpoint.layout import parse_directory_name
from holdfast.cli import png, trial
from holdfast.cli.job import is_held, state_of
from holdfast.cli.screen import Table
from holdfast.cli.spark import sparkline
from holdfast.cli.trial import Trial
from holdfast.cli.words import count, one_line
from holdfast.diagnose.bisection import Bisection, Effect, compare
from holdfast.domain.state import State
from holdfast.errors import HoldfastError, UserError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.lifeline import adopt_orphans
from holdfast.launch.local import sweep
from holdfast.trainer.tuning import OURS, read

UNCHANGED: Final = "unchanged"
_NOISE_RUNS: Final = 2  # Unchanged runs that it takes to know how far runs are apart by themselves.
_CELLS: Final = 40  # Of a curve in the table.
INTERRUPTED: Final = 130
_CUT_SHORT: Final = "it was interrupted"


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
    trials: tuple[Trial, ...]  # Those that were begun.
    not_begun: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def found(self) -> Bisection | None:
        """What those say that came to an end, or to a loss that is not finite; None where so few unchanged runs did that nothing can be held against them."""
        unchanged = [one.curve for one in self.trials if not one.change and one.counts]
        changed = {one.change: one.curve for one in self.trials if one.change and one.counts}
        return compare(unchanged, changed) if len(unchanged) >= _NOISE_RUNS else None

    @property
    def unfinished(self) -> tuple[Trial, ...]:
        return tuple(one for one in self.trials if one.unfinished)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.interrupted else 1 if self.unfinished or self.not_begun else 0

    @property
    def says(self) -> str:
        """In one sentence."""
        found = self.found
        if found is None:
            few = sum(not one.change and one.counts for one in self.trials)
            return f"nothing can be said: {count(few, 'unchanged run')} came to the end, and {_NOISE_RUNS} are needed to know the noise"
        said = found.says if any(one.change and one.counts for one in self.trials) else "no change was tried to the end"
        missing = [one.change for one in self.trials if one.change and not one.counts] + list(self.not_begun)
        return f"{said}; nothing is known of {', '.join(missing)}" if missing else said


def bisect(directory: JobDirectory, wish: Wish, say: Callable[[str], None]) -> Report:
    """Raises UserError for what cannot be tried. A run that does not come to its end is told of; Ctrl-C ends the bisection with what it has."""
    changes = checked(wish.changes)
    if is_held(directory) and not wish.beside:
        raise UserError(f"job {directory.job!r} is running, and the runs would take its machine from it: stop it first, or pass --beside if there is room")
    state = state_of(directory)
    start = _checkpoint(directory, wish.from_step)
    waiting = [(f"{UNCHANGED} {number}", "") for number in range(1, wish.repeats + 1)] + [(change, change) for change in changes]
    runs, done, interrupted = len(waiting), list[Trial](), False
    with _room(directory.path.parent.parent) as (root, keep), _interruptible():
        kept = root / "checkpoints"  # The job may remove its own meanwhile.
        try:
            _link(start, kept)
            while waiting and _can_still_tell(done, wish.repeats):
                name, change = waiting.pop(0)
                say(f"run {len(done) + 1} of {runs}: {name}")
                done.append(Trial(name=name, change=change, unfinished=_CUT_SHORT))  # Until it is known better.
                done[-1] = _try(root, len(done), state, replace(start, path=kept / start.name), done[-1], wish, keep)
                if done[-1].unfinished:
                    say(f"{name} did not come to its end: {done[-1].unfinished}")
        except KeyboardInterrupt:
            interrupted = True
            if done and done[-1].unfinished == _CUT_SHORT:
                done[-1] = trial.ended(done[-1], trial.read_curve(_curve_of(root, len(done))), _CUT_SHORT)
            say("interrupted: this is what was found until then")
    return Report(
        job=directory.job, checkpoint=start.name, step=start.step, steps=wish.steps, trials=tuple(done), not_begun=tuple(name for name, _ in waiting),
        interrupted=interrupted,
    )  # fmt: skip


def _can_still_tell(done: Sequence[Trial], repeats: int) -> bool:
    """Whether the noise can still be known; without it the rest would be tried in vain."""
    return repeats - sum(not one.change and not one.counts for one in done) >= _NOISE_RUNS


@contextlib.contextmanager
def _room(state: Path) -> Iterator[tuple[Path, int]]:
    """Where the runs are kept: on the same file system, for links, under a short path, for sockets; and a lock on it, which goes with whoever is in it."""
    for left in state.glob("bisect-*"):
        with contextlib.suppress(OSError):  # Somebody else's, and in use; or gone already.
            fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(left)
            finally:
                os.close(fd)
    root = Path(tempfile.mkdtemp(prefix="bisect-", dir=state))
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield root, fd
    finally:
        _remove(root)
        os.close(fd)


def _remove(root: Path) -> None:
    for path in (root / "jobs").glob("*/"):
        sweep(JobDirectory(path))
    shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """A request to end and a terminal that is gone are taken as Ctrl-C is; what a trial leaves comes to us."""
    adopt_orphans()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def checked(changes: Sequence[str]) -> tuple[str, ...]:
    """One change each, none twice."""
    for change in changes:
        if len(read(change)) != 1:
            raise UserError(f"--change {change!r}: expected one NAME=VALUE or NAME=*FACTOR, since each run changes one thing; give --change again for another")
        if not all(_is_possible(name, value) for name, value in read(change).items()):  # Else known only after the unchanged runs, or ranked.
            raise UserError(
                f"--change {change}: lr and weight_decay are numbers of 0 or more or factors such as *0.5, clip is a number of 0 or more, "
                "and warmup a whole number of steps"
            )
    again = next((change for change in changes if changes.count(change) > 1), None)
    if again is not None:
        raise UserError(f"--change {again} is given twice; --repeats says how often the unchanged run is repeated")
    if not changes:
        raise UserError('nothing is to be changed: give --change at least once, such as --change "lr=*0.5"')
    return tuple(changes)


def _is_possible(name: str, value: str) -> bool:
    """Of what is changed without the script's help. Of the rest only the script knows."""
    if name not in OURS:
        return True
    number = value.removeprefix("*") if name in ("lr", "weight_decay") else value
    try:
        if name == "warmup":
            return all(int(part) >= 0 for part in number.split("@", 1))
        return isfinite(float(number)) and float(number) >= 0
    except ValueError:
        return False


def _checkpoint(directory: JobDirectory, step: int | None) -> CheckpointFound:
    complete = list_complete(directory.checkpoints)
    if not complete:
        raise UserError(f"job {directory.job!r} has no complete checkpoint on this disk to begin from")
    found = complete[0] if step is None else next((one for one in complete if one.step == step), None)
    if found is None:
        steps = ", ".join(str(one.step) for one in sorted(complete, key=lambda one: one.step))
        raise UserError(f"job {directory.job!r} has no complete checkpoint of step {step}; there are {steps}")
    return found


def _try(root: Path, number: int, state: State, start: CheckpointFound, one: Trial, wish: Wish, keep: int) -> Trial:
    """One run from the checkpoint. It is treated as the job is, and given as much at once as the job was found to hold."""
    assert state.spec is not None
    child, curve = JobDirectory(root / "jobs" / f"run-{number}"), _curve_of(root, number)
    _link(start, child.checkpoints)
    told = {**state.treatment.environment(), **state.fitting.environment({**os.environ, **state.spec.env})}
    tuned = {**read(told.get("HOLDFAST_TUNE", "")), **read(one.change)}
    until = start.step + wish.steps
    environment = {
        **os.environ, **told, "HOLDFAST_TUNE": ",".join(f"{name}={value}" for name, value in tuned.items()), "HOLDFAST_UNTIL": str(until),
        "HOLDFAST_CURVE": str(curve),
    }  # fmt: skip
    return trial.run(child, trial.spec_for(state.spec, child.job), environment, curve, wish.within_s, of=one, until=until, keep=keep)


def _curve_of(root: Path, number: int) -> Path:
    return root / f"run-{number}.curve"


def _link(start: CheckpointFound, target: Path) -> None:
    """The checkpoint, and what is left of all before it: it may share their chunks. What is removed meanwhile was not needed by it."""
    target.mkdir(parents=True, mode=0o700)
    for path in list_directories(start.path.parent):
        step, generation = parse_directory_name(path.name) or (0, 0)
        if (generation, step) <= start.age_key:
            with contextlib.suppress(FileNotFoundError, shutil.Error):
                shutil.copytree(path, target / path.name, copy_function=_link_file)
    if not any(one.name == start.name for one in list_complete(target)):
        raise HoldfastError(f"{start.name} was removed while it was looked at: try again")


def _link_file(source: str, target: str) -> None:
    """The job's checkpoints may lie on a disk of their own."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)


# What is shown.


def shown(report: Report) -> RenderableType:
    found, curves = report.found, {one.name: one.curve for one in report.trials}
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(word, style="dim") for word in ("", "loss at the end", "moves it by", "times the noise", "loss over the steps")))
    for one in report.trials:
        if not one.change and one.counts:
            table.add_row(one.name, _number(compare([one.curve], {}).unchanged), "", "", _drawn(one.curve))
    for effect in found.effects if found is not None else ():
        moves = f"{effect.moves:+.3g}" if isfinite(effect.moves) else effect.says
        times = f"{effect.times:.1f}" if isfinite(effect.times) else "–"
        change = Text(one_line(effect.change), style="bold" if effect.matters else "")
        table.add_row(change, _number(effect.loss), moves, times, _drawn(curves[effect.change]))
    head = f"{report.job} from {report.checkpoint}, at most {report.steps} steps each"
    lines: list[RenderableType] = [Text(f"{head}; noise {found.noise:.3g}" if found is not None else head), Text(""), table, Text("")]
    lines += [Text(f"{one.name} did not come to its end: {one.unfinished}", style="yellow") for one in report.unfinished]
    if report.not_begun:
        lines.append(Text(f"not begun: {', '.join(map(one_line, report.not_begun))}", style="yellow"))
    return Group(*lines, Text(report.says, style="bold"))


def _number(value: float) -> str:
    return f"{value:.4g}" if isfinite(value) else "not finite"


def _drawn(curve: dict[int, float]) -> str:
    return sparkline([value for _, value in sorted(curve.items())], _CELLS)


def as_json(report: Report) -> dict[str, Any]:
    found = report.found
    return {
        "job": report.job, "checkpoint": report.checkpoint, "step": report.step, "steps": report.steps, "says": report.says,
        "interrupted": report.interrupted, "unchanged": _finite(found.unchanged) if found is not None else None,
        "noise": _finite(found.noise) if found is not None else None, "effects": [_effect_json(one) for one in found.effects] if found is not None else [],
        "unfinished": [{"run": one.name, "because": one.unfinished} for one in report.unfinished], "not_begun": list(report.not_begun),
        "curves": {one.name: {str(step): _finite(loss) for step, loss in sorted(one.curve.items())} for one in report.trials},
    }  # fmt: skip


def _effect_json(one: Effect) -> dict[str, Any]:
    return {
        "change": one.change, "loss": _finite(one.loss), "moves": _finite(one.moves), "times": _finite(one.times), "matters": one.matters, "says": one.says,
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def draw(report: Report, path: Path) -> None:
    figure = png.empty(10, 6, f"{report.job} from {report.checkpoint}: {report.says}")
    axes = figure.subplots()
    for one in report.trials:
        steps, name = sorted(one.curve), f"{one.name} (unfinished)" if one.unfinished else one.name
        axes.plot(steps, [one.curve[step] for step in steps], label=name, color=None if one.change else "grey")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    png.save(figure, path)
