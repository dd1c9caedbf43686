"""`holdfast chaos JOB`: real faults in a job that was started for them, from a seed, with a report of what was found, what was done about it and what it cost.

    possible   which faults can be done to this job here, and why not the others
    plan       from the seed: which fault, at which rank, at which step
    run        one after the other, each put right afterwards; also when this process is killed
    report     from the job's journal
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from holdfast.chaos.clock import settable
from holdfast.chaos.fault import Fault
from holdfast.chaos.faults import FAULTS
from holdfast.chaos.foreign import run_suite
from holdfast.chaos.judged import named, right
from holdfast.chaos.listen import DIRECTORY
from holdfast.chaos.needs import Here, look, replaceable, why_not
from holdfast.chaos.plan import planned, suite
from holdfast.chaos.scorecard import WEIGHTS, Scorecard, Tried, scorecard
from holdfast.chaos.storm import LiveScene, Storm, Strike, Struck, ground_of, is_well, views
from holdfast.chaos.undo import UNDO, Undoing, watchdog
from holdfast.cli.chaos_shown import foreign_shown, possible_shown, report_shown
from holdfast.cli.job import is_held, spec_of, state_of
from holdfast.cli.report import write_report
from holdfast.cli.screen import Screen
from holdfast.cli.words import bill_of, cause_of, remedy_of, steps_again
from holdfast.domain.goodput import Bucket
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobSpec
from holdfast.domain.state import State
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory

_STEP_WAIT_S = 120.0
_INTERRUPTED, _TIME_OVER, _JOB_ENDED = "it was interrupted", "its time was over", "the job had ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    faults: str  # Keys, separated by commas; empty: all that are possible.
    count: int
    per_1000_steps: float
    seed: int
    minutes: float
    suite: bool
    list_only: bool
    page: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One strike in the report."""

    fault: str
    said: str
    step: int
    rank: int
    noticed_s: float | None
    called: str
    right: bool
    named: bool
    remedy: str
    recovered: bool | None  # None: it was over before that could be known.
    back_s: float | None
    lost_s: dict[str, float]
    steps_lost: int | None


def orders_of(directory: JobDirectory) -> Path:
    return directory.path / "orders"


def prepared(directory: JobDirectory, spec: JobSpec) -> JobSpec:
    """A job that is to be struck: where its script listens, and a clock that can be set where each node has a network of its own."""
    orders_of(directory).mkdir(exist_ok=True)
    for order in orders_of(directory).iterdir():
        order.unlink()
    if spec.own_network:
        os.environ.update(settable(directory.path))
    return replace(spec, env={**spec.env, DIRECTORY: str(orders_of(directory))})


def run_chaos(directory: JobDirectory, asked: Asked, *, as_json: bool, out: TextIO) -> int:
    """Strike, and print the report; 0 when every fault was found, called rightly and recovered from, and none was left undone but for --minutes."""
    spec = _allowed(directory)
    if asked.list_only:
        _first_step(directory)
        here = look(directory, spec, orders_of(directory))
        reasons = {key: why_not(fault, here) for key, fault in FAULTS.items()}
        _print(reasons if as_json else possible_shown(reasons), out, as_json=as_json)
        return 0
    with _alone(directory), watchdog(directory.path / UNDO):
        step = _first_step(directory)
        chosen = _chosen(asked, look(directory, spec, orders_of(directory)))
        before = state_of(directory)
        storm, cut_short = _storm(directory, _strikes(asked, chosen, spec, step), asked.minutes, None if as_json else out)
        after = state_of(directory)
    if asked.page is not None:
        write_report(after, (), asked.page)
    judged = len(storm.struck) if cut_short == _JOB_ENDED else storm.judged  # What ended the job was not survived; for the rest there was no time.
    told = [tell(one, after, judged=number < judged) for number, one in enumerate(storm.struck)]
    card = _card(told, before, after) if asked.suite else None
    missed = [strike.fault.key for strike in storm.strikes[storm.begun :]]
    if as_json:
        parts = _card_json(card) if card is not None else None
        done = {"struck": [asdict(one) for one in told], "not_struck": missed, "cut_short": cut_short, "refused": storm.refused, "scorecard": parts}
        _print({"job": spec.job, "seed": asked.seed, **done}, out, as_json=True)
    else:
        _print(report_shown(told, missed, cut_short, storm.refused, card), out, as_json=False)
    if cut_short == _INTERRUPTED:
        return 128 + signal.SIGINT
    known = [one for one in told if one.recovered is not None]
    to_the_end = bool(known) and cut_short in ("", _TIME_OVER) and not storm.refused
    return 0 if to_the_end and all(one.recovered and one.right for one in known) else 1


def run_foreign(launcher: str, script: Sequence[str], *, ranks: int, seed: int, as_json: bool, out: TextIO) -> int:
    """The same suite, as far as it can be done, under another launcher, with the same scorecard."""
    with _terminable(), tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as scratch:
        done = run_suite(launcher, script, ranks=ranks, scratch=Path(scratch), seed=seed, say=lambda text: print(text, file=sys.stderr, flush=True))
    card = scorecard(done.tried, kinds=len(FAULTS), goodput=done.goodput)
    if as_json:
        _print({"launcher": launcher, "seed": seed, "struck": [asdict(one) for one in done.tried], "scorecard": _card_json(card)}, out, as_json=True)
    else:
        _print(foreign_shown(launcher, done.tried, card), out, as_json=False)
    return 0 if all(one.recovered for one in done.tried) else 1


def _card_json(card: Scorecard) -> dict[str, Any]:
    return {**asdict(card), "weights": WEIGHTS}


def _allowed(directory: JobDirectory) -> JobSpec:
    if not is_held(directory):
        raise UserError(f"job {directory.job!r} is not running; start it with `holdfast run --chaos --name {directory.job} …`")
    spec = spec_of(directory)
    if not spec.chaos:
        raise UserError(
            f"job {directory.job!r} was not started for faults, and nothing was done to it. A job that may be struck is started with `holdfast run --chaos …`; "
            f"this one can be stopped and run again: `holdfast stop {directory.job}`, then `holdfast run --chaos --name {directory.job} …`"
        )
    return spec


def _chosen(asked: Asked, here: Here) -> list[Fault]:
    keys = [key.strip().replace("-", "_") for key in asked.faults.split(",")] if asked.faults else list(FAULTS)
    unknown = [key for key in keys if key not in FAULTS]
    if unknown:
        raise UserError(f"there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
    if asked.faults:
        for key in keys:
            if reason := why_not(FAULTS[key], here):
                raise UserError(f"{key} is not possible here: {reason}")
    chosen = [FAULTS[key] for key in keys if not why_not(FAULTS[key], here)]
    if not chosen:
        raise UserError("no fault is possible here; `holdfast chaos JOB --list` says why")
    return chosen


@contextlib.contextmanager
def _alone(directory: JobDirectory) -> Iterator[None]:
    """One storm at a time; what an earlier one could not put right is put right first."""
    with (directory.path / "chaos.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"somebody strikes job {directory.job!r} already; wait until that storm is over") from None
        for problem in Undoing(directory.path / UNDO).heal():
            print(f"storm: could not be put right: {problem}", file=sys.stderr)
        yield


def _first_step(directory: JobDirectory) -> int:
    """Where training is, once every rank has made a step: only then is it known what the script can do."""

    async def wait() -> int:
        async for view in views(directory):
            if is_well(view):
                return view.step
        raise UserError(f"job {directory.job!r} has ended; `holdfast show {directory.job}` says how")

    try:
        return asyncio.run(asyncio.wait_for(wait(), _STEP_WAIT_S))
    except TimeoutError:
        raise UserError(
            f"job {directory.job!r} has made no step that can be seen within {_STEP_WAIT_S:.0f} s. Faults are planned by steps: does its script use guard?"
        ) from None


def _strikes(asked: Asked, chosen: Sequence[Fault], spec: JobSpec, step: int) -> Sequence[Strike]:
    if asked.suite:
        return suite(chosen, world_size=spec.world_size, seed=asked.seed, from_step=step)
    return planned(
        chosen, count=asked.count, per_1000_steps=asked.per_1000_steps, world_size=spec.world_size, seed=asked.seed, from_step=step,
        spares=replaceable(spec),
    )  # fmt: skip


def _storm(directory: JobDirectory, strikes: Sequence[Strike], minutes: float, out: TextIO | None) -> tuple[Storm, str]:
    """The storm, and why it was over before all of it was done; empty when all was."""
    scene = LiveScene(directory=directory)
    ground = ground_of(scene, orders_of(directory))
    storm = Storm(ground=ground, scene=scene, strikes=strikes, say=lambda text: print(text, file=out or sys.stderr, flush=True))
    try:
        with _terminable():
            cut_short = asyncio.run(_blow(storm, 60.0 * minutes))
    except KeyboardInterrupt:
        cut_short = _INTERRUPTED
    finally:
        storm.mend()
    if cut_short:
        storm.say(f"storm: ended after {len(storm.struck)} of {len(strikes)} strikes: {cut_short}")
    return storm, cut_short


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A request to end is an exception, which passes through what puts things right."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


async def _blow(storm: Storm, within_s: float) -> str:
    """Until it is over, the job is gone, or the time is up: which of the last two it was, if it was cut short."""

    async def gone() -> None:
        while is_held(storm.scene.directory):
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(storm.run(stop_when_over=True)), asyncio.create_task(gone())]
    done, waiting = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    for task in done:
        task.result()
    return "" if storm.over else _JOB_ENDED if done else _TIME_OVER


# The report.


def tell(struck: Struck, after: State, *, judged: bool = True) -> Told:
    incidents = [one for one in after.incidents if one.id in struck.incidents]
    first = next((one for one in incidents if right(struck.fault, one)), incidents[0] if incidents else None)
    ridden = struck.answered_at is not None and struck.fault.ridden_through and first is None
    return Told(
        fault=struck.fault.key, said=struck.said, step=struck.step, rank=struck.rank,
        noticed_s=max(0.0, first.opened_at - struck.at) if first is not None else None,
        called=cause_of(first) if first is not None else "nothing, as it should be" if ridden else "nothing: the gang moved" if struck.moved else "nothing",
        right=ridden or struck.moved or (first is not None and right(struck.fault, first)),
        named=ridden or struck.moved or (first is not None and named(struck.fault, first, struck.rank, struck.node)),
        remedy=remedy_of(first) if first is not None else "ridden through" if ridden else "moved" if struck.moved else "none",
        recovered=struck.answered_at is not None if judged else None, back_s=None if struck.answered_at is None else struck.answered_at - struck.at,
        lost_s=_lost(after, incidents), steps_lost=_steps_lost(incidents) if first is not None else 0 if ridden else None,
    )  # fmt: skip


def _lost(after: State, incidents: Sequence[Incident]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in incidents:
        for bucket, seconds in bill_of(after, one).items():
            total[bucket.value] = total.get(bucket.value, 0.0) + seconds
    return total


def _steps_lost(incidents: Sequence[Incident]) -> int | None:
    known = [again for one in incidents if (again := steps_again(one)) is not None]
    return sum(known) if known else None


def _card(told: Sequence[Told], before: State, after: State) -> Scorecard:
    tried = [
        Tried(fault=one.fault, found=one.right, recovered=one.recovered, lost_s=sum(one.lost_s.values()) if one.recovered else None)
        for one in told
        if one.recovered is not None
    ]
    wall_s = after.ledger.wall_s - before.ledger.wall_s
    productive = [state.ledger.totals().get(Bucket.PRODUCTIVE, 0.0) for state in (before, after)]
    return scorecard(tried, kinds=len(FAULTS), goodput=(productive[1] - productive[0]) / wall_s if wall_s > 0 else 0.0)


def _print(value: Any, out: TextIO, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(value, indent=2), file=out)
    else:
        Screen(out, highlight=False).print(value)
