"""`holdfast demo`: a real training under a storm of real faults, which then checks itself.

    plan     a transformer, its workers on two nodes and a spare, and the faults with the steps they come at
    run      as `holdfast run` does, with the storm beside it
    check    the job finished, its loss fell, every fault was answered as it should be, nothing is left behind
    report   what was said of it on the terminal, as text, and as one page

Everything is kept under the state directory as for any other job, but for the checkpoints, which are large and of no use to anyone afterwards.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from holdfast.chaos.faults import FAULTS
from holdfast.chaos.judged import right
from holdfast.chaos.listen import DIRECTORY
from holdfast.chaos.storm import LiveScene, Storm, Strike, Struck, ground_of, left_behind
from holdfast.cli.job import new_job
from holdfast.cli.live import Live
from holdfast.cli.report import Sample, text_report, write_report
from holdfast.cli.run import exit_code, run_job
from holdfast.cli.screen import Screen, Table
from holdfast.cli.words import cause_of, count, duration, goodput_of, remedy_of
from holdfast.domain.incident import IncidentPhase
from holdfast.domain.job import UNDER_CHAOS, JobSpec, Outcome, Policy
from holdfast.domain.state import State
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory
from holdfast.launch.local import LocalCluster

# Half of what guessing among 256 bytes costs. The first sample is no measure: how far training is by then depends on the machine.
_LOSS_MAX = 0.5 * math.log(256)
_END = 0.2  # The samples in this part of the steps make the last loss: a single batch jumps, and how many samples a run leaves depends on the machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is trained, on what, and through what."""

    steps: int
    ranks_per_node: int
    options: tuple[str, ...]
    storm: tuple[tuple[str, int, int], ...]  # Key of a fault, the step from which on it comes, and whom it hits.

    def spec(self, directory: JobDirectory, orders: Path) -> JobSpec:
        return JobSpec(
            job=directory.job, run=secrets.token_hex(8), argv=("holdfast.demo.train", "--steps", str(self.steps), *self.options), module=True,
            cwd=str(directory.path), nodes=2, spares=1, ranks_per_node=self.ranks_per_node, env={"OMP_NUM_THREADS": "1", DIRECTORY: str(orders)}, chaos=True,
            policy=Policy(hang_limits=UNDER_CHAOS),
        )  # fmt: skip

    def strikes(self) -> tuple[Strike, ...]:
        return tuple(Strike(fault=FAULTS[key], step=step, rank=rank) for key, step, rank in self.storm)


_WHOLE = _Plan(
    steps=260, ranks_per_node=2, options=(),
    storm=(
        ("worker_killed", 25, 3), ("exception", 55, 1), ("agent_killed", 85, 2), ("worker_stopped", 115, 2), ("control_killed", 145, 0),
        ("node_lost", 175, 0), ("exit_at_start", 205, 0),  # Rank 0 is on the node on which the store runs.
    ),
)  # fmt: skip
_QUICK = _Plan(
    steps=400, ranks_per_node=1, options=("--layers", "2", "--width", "64"),
    storm=(("worker_killed", 30, 1), ("control_killed", 55, 0), ("node_lost", 80, 0)),
)  # fmt: skip


def run_demo(root: Path, live: Live, *, quick: bool, page: Path) -> int:
    """Run the demo and print its report; 0 when everything was survived as it should be."""
    _check_torch()
    _check_page(page)
    plan = _QUICK if quick else _WHOLE
    directory = new_job(root, f"demo-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}")
    as_json = live.mode == "json"
    if as_json:
        # One object is the whole output, so what happens meanwhile goes to standard error.
        with open(os.devnull, "wb") as null:
            ended, struck = _run(directory, plan, Live(null, sys.stderr, mode="plain"))
    else:
        ended, struck = _run(directory, plan, live)
        live.summary(ended)
    checked = _check(directory, plan, ended, struck)
    write_report(ended, checked.history, page)
    (directory.path / "report.txt").write_text(text_report(ended, loss=checked.loss_last), encoding="utf-8")
    shutil.rmtree(directory.checkpoints, ignore_errors=True)
    print(json.dumps(_as_json(checked, page), indent=2)) if as_json else _print(checked, page)
    return exit_code(ended) or (1 if checked.problems else 0)


def _check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UserError("the demo trains a model, and torch is not installed here: pip install 'holdfast[torch]'")


def _check_page(page: Path) -> None:
    """Said now, and not after two minutes."""
    if page.is_dir() or not os.access(page.absolute().parent, os.W_OK):
        raise UserError(f"the page cannot be written to {page}; name a file in a directory that exists and can be written, with --report")


def _run(directory: JobDirectory, plan: _Plan, live: Live) -> tuple[State, Sequence[Struck]]:
    orders = directory.path / "orders"
    orders.mkdir()
    spec, strikes = plan.spec(directory, orders), plan.strikes()
    storms: list[tuple[Storm, asyncio.Task[None]]] = []

    def started(cluster: LocalCluster) -> None:
        scene = LiveScene(directory=directory)
        storm = Storm(ground=ground_of(scene, orders), scene=scene, strikes=strikes, say=live.note)
        storms.append((storm, asyncio.create_task(storm.run())))

    where = f"{count(spec.world_size, 'worker')} on {count(spec.nodes, 'node')} and a spare"
    live.note(f"{directory.job}: {where}; a storm of {count(len(strikes), 'fault')} is on its way")
    try:
        ended = run_job(directory, spec, live, started=started)
    finally:
        live.close()
        shutil.rmtree(orders)
    storm, task = storms[0]
    if task.done() and not task.cancelled():
        task.result()  # A storm that broke is our own mistake, and would look like good weather.
    return ended, storm.struck


# Check.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One strike in the report."""

    struck: Struck
    answer: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    ended: State
    history: tuple[Sample, ...]
    loss_first: float | None
    loss_last: float | None
    lines: tuple[_Line, ...]
    problems: tuple[str, ...]


def _check(directory: JobDirectory, plan: _Plan, ended: State, struck: Sequence[Struck]) -> _Checked:
    history = _history(directory)
    losses = [(sample.step, sample.loss) for sample in history if sample.loss is not None and math.isfinite(sample.loss)]
    first, last = losses[0][1] if losses else None, last_loss(losses)
    lines = tuple(_line(one, ended) for one in struck)
    problems = [f"{line.struck.said}: {line.problem}" for line in lines if line.problem]
    if ended.outcome is not Outcome.FINISHED:
        problems.append(f"the job did not finish: {ended.because}")
    else:
        problems += [f"the job ended before this fault could be struck: {key}" for key, _, _ in plan.storm[len(struck) :]]
        if first is None or last is None or last > _LOSS_MAX:
            problems.append(f"the loss was {first} at the start and {last} at the end; expected it to fall below {_LOSS_MAX:.2f}")
    problems += [f"left behind: {one}" for one in left_behind(directory, sorted(ended.nodes))]
    return _Checked(ended=ended, history=history, loss_first=first, loss_last=last, lines=lines, problems=tuple(problems))


def last_loss(losses: Sequence[tuple[int, float]]) -> float | None:
    if not losses:
        return None
    newest = losses[-1][0]
    at_the_end = [loss for step, loss in losses if step >= (1 - _END) * newest]
    return sum(at_the_end) / len(at_the_end)


def _history(directory: JobDirectory) -> tuple[Sample, ...]:
    if not directory.samples.exists():
        return ()
    return tuple(Sample(**json.loads(row)) for row in directory.samples.read_text().splitlines())


def _line(struck: Struck, ended: State) -> _Line:
    incidents = [one for one in ended.incidents if one.id in struck.incidents]
    if struck.answered_at is None:
        return _Line(struck=struck, answer="not survived", problem="it was neither answered nor ridden through in time")
    if not incidents:
        return _Line(struck=struck, answer="ridden through: no worker noticed", problem="" if struck.fault.ridden_through else "nobody noticed it")
    said = "; ".join(f"incident {one.id}: {cause_of(one)}, {remedy_of(one)}" for one in incidents)
    if not any(right(struck.fault, one) for one in incidents):
        seen = {diagnosis.cause for one in incidents for diagnosis in one.diagnoses}
        expected = " or ".join(struck.fault.kinds) or "that nobody notices"
        return _Line(struck=struck, answer=said, problem=f"expected {expected}, and it was diagnosed as {', '.join(sorted(seen)) or 'nothing'}")
    resolved = all(one.phase is IncidentPhase.RESOLVED for one in incidents)
    return _Line(struck=struck, answer=said, problem="" if resolved else "it was given up")


# Report.


def _print(checked: _Checked, page: Path) -> None:
    console = Screen(highlight=False)
    job = checked.ended.spec.job if checked.ended.spec is not None else ""
    console.print(Text("\nThe storm", style="bold"), _storm_table(checked.lines))
    if checked.loss_first is not None and checked.loss_last is not None:
        console.print(f"Loss {checked.loss_first:.2f} → {checked.loss_last:.2f} over {count(checked.ended.step_best, 'step')}.")
    for problem in checked.problems:
        console.print(Text(f"✗ {problem}", style="bold red"))
    if not checked.problems:
        goodput = goodput_of(checked.ended.ledger)
        console.print(Text(f"✓ {count(len(checked.lines), 'fault')} survived, goodput {goodput}, nothing left behind.", style="bold green"))
    console.print(Text(f"\nReport   {page.absolute()}\nDetails  holdfast show {job}"), soft_wrap=True)


def _storm_table(lines: Sequence[_Line]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for line in lines:
        mark = Text("✗", style="bold red") if line.problem else Text("✓", style="green")
        table.add_row(mark, f"step {line.struck.step:,}", Text(line.struck.said), Text(line.answer), _took(line.struck))
    return table


def _took(struck: Struck) -> str:
    return "" if struck.answered_at is None else duration(struck.answered_at - struck.at)


def _as_json(checked: _Checked, page: Path) -> dict[str, Any]:
    ended = checked.ended
    return {
        "job": ended.spec.job if ended.spec is not None else "",
        "survived": not checked.problems,
        "problems": list(checked.problems),
        "outcome": str(ended.outcome) if ended.outcome is not None else None,
        "code": ended.code,
        "wall_s": ended.ledger.wall_s,
        "goodput": ended.ledger.goodput,
        "steps": ended.step_best,
        "loss_first": checked.loss_first,
        "loss_last": checked.loss_last,
        "incidents": len(ended.incidents),
        "faults": [
            {
                "fault": line.struck.fault.key, "did": line.struck.said, "step": line.struck.step, "answer": line.answer,
                "incidents": list(line.struck.incidents), "problem": line.problem,
                "seconds": None if line.struck.answered_at is None else line.struck.answered_at - line.struck.at,
            }
            for line in checked.lines
        ],
        "page": str(page.absolute()),
    }  # fmt: skip
