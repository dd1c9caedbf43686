"""Leaving: 30 ways to leave a loop, on 1 and 2 ranks under `holdfast run`. No finished step is to be silently unsaved, and a resume goes on right.

Each way is a job of `scripts/leaves.py`. When it is over, the newest complete checkpoint is held against the script's own log of finished steps: it is of the
last one, or a sentence on the screen names every step that is in none. Then the job is resumed and comes to its end, with the weights, momentum, averages and
rates of a run that nobody left, bit for bit. Where nothing more than a sentence can be right, because the loop was left in the middle of a step's work or the
script trained on after it, that is asked for by name.
"""

from __future__ import annotations

import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.jobs import SCRIPTS, scratch_directory
from harness.measure import Report, arguments, say
from harness.processes import Launched

from holdfast.checkpoint.found import newest_complete
from holdfast.launch.layout import JobDirectory

SAVED = (
    "break_top", "break_bottom", "break_bottom@sampler", "break_top@sampler", "break_bottom@loader", "break_top@loader", "break_bottom@workers", "return_top",
    "return_bottom", "raise_top", "raise_bottom", "forward_no_norm", "exit_top", "exit_bottom", "interrupt_top", "interrupt_bottom", "uncaught_top", "uncaught",
    "next_kept", "next_group_gone", "next_evaluates", "deleted", "islice", "takewhile", "zip_top", "zip_bottom", "enumerated", "bar", "bar_kept", "thread",
    "epochs", "two_optimizers", "scaler", "group_end", "data_raises", "quick",
)  # fmt: skip
TOLD = ("break_middle", "raise_middle", "raise_forward", "break_before_average", "group_middle", "next_moved", "uneven")
QUICK = ("break_bottom", "break_top@loader", "next_kept", "break_middle", "uncaught")
_WITHIN_S = 240.0
_LOST = re.compile(r"steps? (\d+)(?: to (\d+))? (?:is|are) in no checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    way: str
    ranks: int
    finished: int  # Steps that every rank has finished when the loop was left.
    saved: int
    told: bool  # A sentence names what is in no checkpoint.
    resumed_right: bool
    story: str = ""

    @property
    def silent(self) -> bool:
        return self.saved < self.finished and not self.told

    @property
    def expected(self) -> bool:
        return self.saved >= self.finished if self.way in SAVED else not self.silent


def measure(report: Report, chosen: argparse.Namespace, scratch: Path) -> None:
    asked = getattr(chosen, "ways", "")
    ways = asked.split(",") if asked else QUICK if chosen.quick else (*SAVED, *TOLD)
    cases = [(way, ranks) for ranks in (1, 2) for way in ways if not (way == "uneven" and ranks == 1)]
    with ThreadPoolExecutor(2) as pool:  # Each is mostly the start of Python.
        ends = dict(pool.map(lambda case: (case, _undisturbed(scratch, *case)), sorted({_reference(*case) for case in cases})))
        found = list(pool.map(lambda case: _leave(scratch, *case, end=ends[_reference(*case)]), cases))
    for left in found:
        if left.silent or not left.resumed_right or not left.expected:
            report.note(f"{left.way} on {left.ranks}: finished {left.finished}, saved {left.saved}, told {left.told}; {left.story}")
    report.raw["leaving"] = [asdict(left) for left in found]
    report.series("ways to leave a loop: steps finished and not saved", "steps", [max(0, one.finished - one.saved) for one in found])
    report.bar("ways to leave a loop: finished steps silently unsaved", sum(one.silent for one in found), "of ways", at_most=0)
    report.bar("ways to leave a loop: the last finished step saved where it can be", sum(not one.expected for one in found), "missed", at_most=0)
    report.bar("ways to leave a loop: resumed from there with other weights", sum(not one.resumed_right for one in found), "of ways", at_most=0)


def _reference(way: str, ranks: int) -> tuple[str, int]:
    """The way that trains the same and is not left."""
    kind, _, data = way.partition("@")
    if kind in ("group_middle", "group_end"):
        return "group_end", ranks
    alone = kind in ("two_optimizers", "scaler", "forward_no_norm", "uneven", "data_raises")
    return (kind if alone else f"break_top@{data}" if data else "break_top"), ranks


def _undisturbed(scratch: Path, way: str, ranks: int) -> list[str]:
    where = scratch / f"reference-{way}-{ranks}"
    where.mkdir()
    for rank in range(ranks):
        (where / f"left-{rank}").touch()
    _holdfast(where, "run", "--no-warm", "--nproc-per-node", str(ranks), "--name", "reference", str(SCRIPTS / "leaves.py"), str(where), way)
    return _ends(where, ranks)


def _leave(scratch: Path, way: str, ranks: int, *, end: list[str]) -> Left:
    where = scratch / f"{way}-{ranks}"
    where.mkdir()
    state = where / "state"
    said = _holdfast(where, "run", "--no-warm", "--nproc-per-node", str(ranks), "--name", "job", str(SCRIPTS / "leaves.py"), str(where), way)
    newest = newest_complete(JobDirectory(state / "jobs" / "job").checkpoints)
    saved = newest.step if newest is not None else 0
    logs = "".join(path.read_text() for path in sorted(JobDirectory(state / "jobs" / "job").logs.glob("*.log")))
    finished = min(_finished(where, rank) for rank in range(ranks))
    told = _is_told(said + logs, saved, finished)
    if saved < 60 and not way.startswith("uncaught"):
        said += _holdfast(where, "resume", "job")
    right = _ends(where, ranks) == end
    say(f"{way} on {ranks}: finished {finished}, saved {saved}{', told' if told else ''}; resumed {'right' if right else 'WRONG'}")
    return Left(way=way, ranks=ranks, finished=finished, saved=saved, told=told, resumed_right=right, story=" | ".join(said.splitlines()[-12:]))


def _finished(where: Path, rank: int) -> int:
    lines = (where / f"done-{rank}").read_text().split()
    return max(map(int, lines), default=0)


def _is_told(said: str, saved: int, finished: int) -> bool:
    for found in _LOST.finditer(said):
        first = int(found[1])
        if first <= saved + 1 and int(found[2] or first) >= finished:
            return True
    return False


def _ends(where: Path, ranks: int) -> list[str]:
    paths = [where / f"end-{rank}" for rank in range(ranks)]
    return [path.read_text() if path.exists() else "" for path in paths]


def _holdfast(where: Path, verb: str, *options: str) -> str:
    """All that it says."""
    log = where / f"{verb}.log"
    command = [sys.executable, "-m", "holdfast.cli", verb, "--state", str(where / "state"), *options]
    with Launched(command, log=log, cwd=where, env={"TMPDIR": "/tmp"}) as launched:
        launched.process.wait(_WITHIN_S)
    return log.read_text(errors="replace")


def main() -> None:
    chosen = arguments(__doc__ or "", texts={"ways": f"some of the ways, separated by commas: {', '.join((*SAVED, *TOLD))}"})
    report = Report("Leaving a loop")
    with scratch_directory(keep=chosen.keep) as scratch:
        measure(report, chosen, scratch)
    report.finish(chosen)


if __name__ == "__main__":
    main()
