"""A job under another launcher: started by us, seen by the step logs of its script, struck with what needs nothing of Holdfast's, and held against the clock.

Nobody there says what was found, so nothing counts as detected: what is seen is whether every rank steps again, and how soon.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from holdfast.chaos.fault import Fault
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.ground import Ground, Missed
from holdfast.chaos.inside import carried
from holdfast.chaos.listen import BEATS, DIRECTORY
from holdfast.chaos.scorecard import Tried
from holdfast.chaos.steps import StepLogs
from holdfast.chaos.undo import End, Undoing, identity, watchdog
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory

KEYS = ("worker_killed", "exception", "worker_stopped", "rank_asleep", "gil_held")
T = TypeVar("T")
LAUNCHERS = {"torchrun": "torch.distributed.run"}  # Name to module.
_START_S, _BACK_S, _WARM_STEPS, _LOOK_S = 180.0, 60.0, 20, 0.02


@dataclass(frozen=True, slots=True)
class LoggedScene:
    directory: JobDirectory
    logs: StepLogs

    def pid(self, rank: int) -> int:
        return self.logs.newest_pids()[rank]

    def node(self, rank: int) -> str:
        raise Missed("another launcher's nodes are not known")

    def step(self) -> int:
        return self.logs.newest_step()


@dataclass(frozen=True, slots=True, kw_only=True)
class Under:
    """What came of a suite under another launcher."""

    tried: tuple[Tried, ...]
    goodput: float  # New steps, at the pace of an undisturbed while, over the time from the first fault to the end.


def run_suite(launcher: str, script: Sequence[str], *, ranks: int, scratch: Path, seed: int, say: Callable[[str], None]) -> Under:
    """Every fault that is possible, each until every rank steps again or the time for it is over; then the job is started anew."""
    if launcher not in LAUNCHERS:
        raise UserError(f"--launcher is one of {', '.join(LAUNCHERS)}, not {launcher!r}; without it JOB is a job of Holdfast's")
    if not Path(script[0]).is_file():
        raise UserError(f"there is no script {script[0]!r} in {Path.cwd()}; with --launcher JOB is a script")
    chance, waiting = Random(seed), list(KEYS)
    tried: list[Tried] = []
    steps, usual_s, wall_s = 0, 0.0, 0.0
    while waiting:
        orders = scratch / f"launch-{len(tried)}"
        orders.mkdir()
        logs = StepLogs(orders, ranks, BEATS)
        ground = Ground(scene=LoggedScene(JobDirectory(orders), logs), orders=orders, undoing=Undoing(orders / "undo"))
        with watchdog(ground.undoing.path), _launched(launcher, script, ranks, ground) as process:
            _wait_for_steps(logs, process, orders)
            usual_s, first, began = usual_s or _pace(logs), logs.newest_step(), time.monotonic()
            waiting = [key for key in waiting if not FAULTS[key].order or FAULTS[key].order in carried(orders)]
            alive = True
            while waiting and alive:
                tried.append(_strike(FAULTS[waiting.pop(0)], ground, logs, chance.randrange(ranks), process, say))
                alive = tried[-1].recovered
            steps, wall_s = steps + logs.newest_step() - first, wall_s + time.monotonic() - began
    return Under(tried=tuple(tried), goodput=steps * usual_s / wall_s if wall_s > 0 else 0.0)


def _strike(fault: Fault, ground: Ground, logs: StepLogs, rank: int, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> Tried:
    before, at = logs.newest_pids()[rank], time.monotonic()
    fault.strike(ground, rank)
    say(f"storm: {fault.says.format(rank=rank, node='')}")
    back = _until(lambda: logs.all_again(rank, at, before), _BACK_S, process)
    if back is None and process.poll() == 0:
        raise UserError(f"the script came to its end at step {logs.newest_step()}, under {fault.key}, of which nothing is known so: let it make more steps")
    say(f"storm: every rank steps again after {back - at:.1f} s" if back is not None else "storm: not survived")
    if back is not None:
        counted = {other: len(steps) for other, steps in logs.read().items()}
        _until(lambda: all(len(steps) >= counted[other] + _WARM_STEPS for other, steps in logs.read().items()), _BACK_S, process)
    return Tried(fault=fault.key, found=False, recovered=back is not None, lost_s=None if back is None else back - at)


def _until(look: Callable[[], T], within_s: float, process: subprocess.Popen[bytes]) -> T | None:
    until = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > until or process.poll() is not None:
            return None
        time.sleep(_LOOK_S)
    return found


def _wait_for_steps(logs: StepLogs, process: subprocess.Popen[bytes], orders: Path) -> None:
    if _until(lambda: logs.fewest_since(set()) >= _WARM_STEPS, _START_S, process) is None:
        last = (orders / "launch.log").read_text(errors="replace").strip().splitlines()[-1:]
        raise UserError(
            f"the script made no {_WARM_STEPS} steps that can be seen within {_START_S:.0f} s: has it the two lines of docs/chaos.md? It said last: {last}"
        )


def _pace(logs: StepLogs) -> float:
    """Seconds a step, in the while before the first fault."""
    steps = next(iter(logs.read().values()))[-_WARM_STEPS:]
    return (steps[-1].at - steps[0].at) / max(1, steps[-1].step - steps[0].step)


@contextmanager
def _launched(launcher: str, script: Sequence[str], ranks: int, ground: Ground) -> Iterator[subprocess.Popen[bytes]]:
    """Its end is among what is to be put right: nobody else would end it if we were killed."""
    command = [sys.executable, "-m", LAUNCHERS[launcher], "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "100", *script]
    with (ground.orders / "launch.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, DIRECTORY: str(ground.orders)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    ground.undoing.add(End(process=identity(process.pid)))
    try:
        yield process
    finally:
        ground.undoing.heal()
        process.wait()
