"""A trial: one run of a bisection, from a checkpoint that is linked to it, as the job itself is run but that nothing is done about what goes wrong.

    spec_for(spec, name)       the job's own specification, less what reaches beyond the run
    run(…)                     the run, in a process of its own, to its end or to the end of its time; what came of it
    python -m holdfast.cli.trial DIRECTORY PARENT     that process: it ends with whoever started it

Whatever happens, no process, shared memory or control group of a trial is left when `run` returns or raises.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent import tree
from holdfast.chaos.listen import DIRECTORY as ORDERS
from holdfast.cli.job import spec_of, state_of
from holdfast.cli.live import Live
from holdfast.cli.run import exit_code, run_job
from holdfast.cli.words import duration, first_cause_exit, one_line, printed
from holdfast.domain.job import JobSpec, MayChange, Mode, Outcome, SaveEvery
from holdfast.domain.plan import Rung
from holdfast.domain.state import State
from holdfast.errors import HoldfastError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.lifeline import die_with_parent, reap_orphans
from holdfast.launch.local import sweep

_GRACE_S: Final = 1.0  # Nothing of a trial is worth saving.
_LEAVE_S: Final = 15.0  # A run that was asked to leave needs its grace, a kill, and a moment to put things away.
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NO_LOSS: Final = "its script ended and no loss was seen: nothing was left to train from this checkpoint (--from STEP takes an earlier one), or it reports none"
_WORDS: Final = 400  # Of a log's last line.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one run."""

    name: str
    change: str = ""  # Empty: nothing was changed.
    curve: dict[int, float] = field(default_factory=dict)  # Loss by step.
    unfinished: str = ""  # Why it did not come to its end; empty: it did.

    @property
    def counts(self) -> bool:
        """Whether it says something of the change. A loss that is not finite any more does, also where the script then gives up by itself."""
        return not self.unfinished or not all(map(isfinite, self.curve.values()))


def spec_for(spec: JobSpec, name: str) -> JobSpec:
    """The same machine, gang, limits and files. Nothing is saved, learned, treated or told to anybody, and the first thing that goes wrong ends it."""
    each = len(spec.gpus) // (spec.nodes + spec.spares)
    policy = replace(
        spec.policy, mode=Mode.AUTO, max_restarts=0, never=tuple(rung.name.lower() for rung in Rung if rung is not Rung.STOP), budgets=(),
        may_change=MayChange(), skip_batches=None, stop_grace_s=_GRACE_S, profile_every_s=None,
    )  # fmt: skip
    return replace(
        spec, job=name, run=secrets.token_hex(8), policy=policy, env={key: value for key, value in spec.env.items() if key != ORDERS}, chaos=False,
        spares=0, min_nodes=0, gpus=spec.gpus[: each * spec.nodes], save_every=SaveEvery(steps=0), remote="", generations_before=0, limits=None,
        metrics=None, power_cap_watts=None, notice_file="", rules=(), alerts="", learned=None,
    )  # fmt: skip


def run(
    directory: JobDirectory, spec: JobSpec, environment: Mapping[str, str], curve: Path, within_s: float, *, of: Trial, until: int, keep: int
) -> Trial:
    """`of` says whose run it is, `until` which step is its last, and `keep` is a descriptor that stays open as long as anything of it runs. KeyboardInterrupt
    passes, with all ended. What goes wrong after the last step says nothing about the change."""
    directory.spec.write_bytes(msgspec.json.encode(spec))
    others = {process.pid for process in tree.descendants(os.getpid())}
    process, late = None, False
    with directory.path.with_suffix(".log").open("wb") as log:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.trial", str(directory.path), str(os.getpid())], cwd=spec.cwd, env=dict(environment),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=[keep],
            )  # fmt: skip
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with _uninterrupted():
                _end(process, others)
                sweep(directory)
    found = read_curve(curve)
    assert process is not None
    why = f"it was not done after {duration(within_s)}" if late else _why_unfinished(directory, process.returncode)
    if max(found, default=-1) >= until:
        why = ""
    if not why and not found:  # A loss that was never seen is not one that is not finite.
        return replace(of, unfinished=_NO_LOSS)
    return ended(of, found, why)


def ended(of: Trial, curve: dict[int, float], why: str) -> Trial:
    """With how far it came, where it did not come to its end."""
    where = f", at step {max(curve)}" if curve else ", before its first step"
    return replace(of, curve=curve, unfinished=f"{why}{where}" if why else "")


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Whoever is impatient while things are put away would leave them where they are."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes] | None, others: set[int]) -> None:
    """Asked first, so that it puts away what it has; then all that came to us since: what lost its own parent is ours, see `adopt_orphans`."""
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S)
    tree.end_tree([one.pid for one in tree.descendants(os.getpid()) if one.pid not in others], grace_s=0.0)
    if process is not None:
        process.wait()
    reap_orphans(but=others)


def _why_unfinished(directory: JobDirectory, code: int) -> str:
    """Empty when its script came to an end."""
    state = state_of(directory) if directory.journal.exists() else None
    if state is not None and state.outcome is Outcome.FINISHED and code == 0:
        return ""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    if state is not None and state.outcome is not None:
        return one_line(state.because) + _last_line(state)
    lines = directory.path.with_suffix(".log").read_text(errors="replace").strip().splitlines()
    return f"it failed to start (exit code {code}): {one_line(lines[-1])[:_WORDS] if lines else 'it said nothing'}"


def _last_line(state: State) -> str:
    """What a rank that was ended by a signal printed last: a signal alone says little."""
    exit = first_cause_exit(state)
    lines = printed(exit.tail).strip().splitlines() if exit is not None and exit.signal else []
    return f" ({one_line(lines[-1])[:_WORDS]})" if lines else ""


def read_curve(path: Path) -> dict[int, float]:
    found: dict[int, float] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            step, _, loss = line.partition(" ")
            with contextlib.suppress(ValueError):  # The last line of a rank that was killed may be half a line.
                found[int(step)] = float(loss)
    return found


def main(directory: JobDirectory, parent: int) -> int:
    die_with_parent(parent)
    spec = spec_of(directory)
    try:
        return exit_code(run_job(directory, spec, Live(sys.stdout.buffer, sys.stderr, mode="plain")))
    except HoldfastError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(JobDirectory(Path(sys.argv[1])), int(sys.argv[2])))
