"""Forty scripts that are odd and legal, each under torchrun and under Holdfast, with 1 and 2 ranks: the same end, and no incident that acts.

Judged by what the script writes down and by the journal: an incident that acts is one for which the gang was stopped or a plan was begun with. Such a run is
ended there, for what comes after it says nothing. Two scripts say that somebody stops processes outside: that is done here, with SIGSTOP and SIGCONT, to the
launcher's process group (as Ctrl-Z in a terminal), or to all processes of the job at once, which for them is as a machine that sleeps.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.jobs import Gang, Job
from harness.measure import Report, commit, median, say
from harness.processes import kill

from holdfast.domain.incident import Incident
from legal.record import Record

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = tuple(sorted(path.stem for path in SCRIPTS.glob("[a-z]*.py")))
WORLDS = (1, 2)
OUTSIDE_S = {"terminal_stopped": 30.0, "laptop_sleeps": 60.0}
STOPPED_AFTER_STEPS = 200
LONGEST_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of a script under one launcher."""

    code: int | None  # None: it was ended, because it was struck or took too long.
    said: tuple[str, ...]  # The last line of each rank.
    printed: bool  # The last line of rank 0 came through.
    took_s: float | None  # From the first line of rank 0 to its last one.
    processes: int
    acted: tuple[str, ...] = ()  # Stories of the incidents that act.
    noticed: tuple[str, ...] = ()  # And the first lines of the others.
    words: str = ""  # The last of its log, where it did not end well.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    script: str
    ranks: int
    pause_s: float
    torchrun: Outcome
    holdfast: Outcome
    commit: str

    @property
    def legal(self) -> bool:
        return self.torchrun.code == 0 and len(self.torchrun.said) == self.ranks == self.torchrun.processes

    @property
    def same_end(self) -> bool:
        ours, theirs = self.holdfast, self.torchrun
        return (ours.code, ours.printed, len(ours.said)) == (theirs.code, theirs.printed, len(theirs.said))

    @property
    def same_weights(self) -> bool:
        return self.holdfast.said == self.torchrun.said

    @property
    def struck(self) -> bool:
        return bool(self.holdfast.acted) or self.holdfast.processes > self.ranks

    @property
    def slower(self) -> float | None:
        """How much more time the script took, as a share."""
        if self.struck or not self.same_end or not self.holdfast.took_s or not self.torchrun.took_s:
            return None
        return self.holdfast.took_s / self.torchrun.took_s - 1.0


def measure(report: Report, chosen: Namespace, scratch: Path) -> None:
    pause_s = chosen.pause_s or LONGEST_S
    record = Record(chosen.record, "scripts")
    names = [name for name in NAMES if not chosen.scripts or name in chosen.scripts.split(",")]
    wanted = [(name, ranks) for name in names for ranks in WORLDS]
    random.Random(chosen.seed).shuffle(wanted)
    done = [pair for pair in map(read_pair, record.read()) if pair.pause_s == pause_s and (pair.script, pair.ranks) in wanted]
    known = {(pair.script, pair.ranks) for pair in done}
    for pair in run_pairs([one for one in wanted if one not in known], chosen.lanes, scratch, pause_s):
        done.append(pair)
        say(f"scripts, {len(done)} of {len(wanted)}: {pair.script}, {pair.ranks} ranks: {verdict(pair)}")
        record.add(pair)
    tell(report, done)


def read_pair(line: dict[str, Any]) -> Pair:
    return Pair(**{**line, "torchrun": Outcome(**line["torchrun"]), "holdfast": Outcome(**line["holdfast"])})


def run_pairs(wanted: list[tuple[str, int]], lanes: int, scratch: Path, pause_s: float) -> Iterator[Pair]:
    """Several pairs at once, as they end; each runs the two ways one after the other."""
    stopped = threading.Event()
    with ThreadPoolExecutor(lanes) as pool:
        running = [pool.submit(run_pair, scratch / f"{name}-{ranks}", name, ranks, pause_s, stopped) for name, ranks in wanted]
        try:
            for one in as_completed(running):
                yield one.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


def run_pair(scratch: Path, name: str, ranks: int, pause_s: float, stopped: threading.Event) -> Pair:
    scratch.mkdir()
    ways = {"torchrun": run_torchrun, "holdfast": run_holdfast}
    order = random.Random(f"{name} {ranks}").sample(sorted(ways), 2)
    outcomes = {way: ways[way](scratch, name, ranks, pause_s, stopped) for way in order}
    return Pair(script=name, ranks=ranks, pause_s=pause_s, commit=commit(), **outcomes)


def run_torchrun(scratch: Path, name: str, ranks: int, pause_s: float, stopped: threading.Event) -> Outcome:
    directory = scratch / "torchrun"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(SCRIPTS / f"{name}.py"), str(directory)]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(directory / "cache"), **surroundings(pause_s)}
    with Gang(directory, "torchrun", command, world_size=ranks, env=env) as gang:
        follow(gang, name, pause_s, stopped)
        return outcome(gang, ranks)


def run_holdfast(scratch: Path, name: str, ranks: int, pause_s: float, stopped: threading.Event) -> Outcome:
    with Job(scratch, "holdfast", str(SCRIPTS / f"{name}.py"), nproc=ranks, env=surroundings(pause_s)) as job:
        follow(job, name, pause_s, stopped)
        incidents = job.incidents()
        acted = tuple("; ".join(line.what for line in one.story) for one in incidents if acts(one))
        return outcome(job, ranks, acted, tuple(one.story[0].what for one in incidents if not acts(one)))


def surroundings(pause_s: float) -> dict[str, str]:
    return {"HOLDFAST_PAUSE_S": str(pause_s), "PYTHONUNBUFFERED": "1"}


def acts(incident: Incident) -> bool:
    """Whether something was done for it: the gang was stopped, or a plan was begun with. What is only told, or looked at, does not act."""
    return bool(incident.acted) or any(line.what.startswith(("stopping:", "gave_up:")) for line in incident.story)


def follow(gang: Gang, name: str, pause_s: float, stopped: threading.Event) -> None:
    """Until it has ended, or something was done to it."""
    deadline, outside_s, looked_at = time.monotonic() + LONGEST_S, OUTSIDE_S.get(name), 0.0
    while gang.process.poll() is None and not stopped.is_set() and time.monotonic() < deadline:
        if outside_s is not None and gang.steps.fewest_since(set()) >= STOPPED_AFTER_STEPS:
            stop_outside(gang, min(outside_s, pause_s), everything=name == "laptop_sleeps")
            outside_s = None
        if isinstance(gang, Job) and time.monotonic() - looked_at > 2.0:
            looked_at = time.monotonic()
            if any(map(acts, gang.incidents())):
                return
        time.sleep(0.1)


def stop_outside(gang: Gang, seconds: float, *, everything: bool) -> None:
    pids = [one.pid for one in gang.processes()] if everything else []
    for signum, wait_s in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(gang.process.pid, signum)
        for pid in pids:
            kill(pid, signum)
        time.sleep(wait_s)


def outcome(gang: Gang, ranks: int, acted: tuple[str, ...] = (), noticed: tuple[str, ...] = ()) -> Outcome:
    steps, ends = gang.steps.read(), [gang.scratch / f"end-{rank}" for rank in range(ranks)]
    lines = [path.read_text().rpartition(" ") for path in ends if path.exists()]
    said = tuple(line for line, _, _ in lines)
    code = gang.process.poll()
    return Outcome(
        code=code, said=said, printed=bool(said) and said[0] in gang.log.read_text(errors="replace"), processes=len(gang.steps.pids()),
        took_s=float(lines[0][2]) - steps[0][0].at if ends[0].exists() and steps.get(0) else None, acted=acted, noticed=noticed,
        words=gang.last_words() if code != 0 or len(said) < ranks else "",
    )  # fmt: skip


def verdict(pair: Pair) -> str:
    if not pair.legal:
        return f"NOT LEGAL, torchrun left with {pair.torchrun.code}:\n{pair.torchrun.words}"
    if pair.struck:
        return f"STRUCK: {' | '.join(pair.holdfast.acted) or f'{pair.holdfast.processes} processes'}"
    if not pair.same_end:
        return f"ANOTHER END, code {pair.holdfast.code}:\n{pair.holdfast.words}"
    if not pair.same_weights:
        return f"OTHER WEIGHTS: {pair.holdfast.said}, not {pair.torchrun.said}"
    told = f"; told: {'; '.join(pair.holdfast.noticed)}" if pair.holdfast.noticed else ""
    return f"{pair.torchrun.took_s:.1f} s, {pair.holdfast.took_s:.1f} s under Holdfast{told}"


def tell(report: Report, done: list[Pair]) -> None:
    slower = [100.0 * pair.slower for pair in done if pair.slower is not None]
    report.series("scripts: more wall time beyond the start", "%", slower)
    told = sum(bool(pair.holdfast.noticed) for pair in done)
    report.note(f"scripts: {len(done)} pairs of {len({pair.script for pair in done})} scripts; {told} had an incident that did nothing")
    report.raw["scripts"] = [asdict(pair) for pair in done]
    for pair in done:
        if not pair.legal or pair.struck or not pair.same_end:
            report.note(f"{pair.script}, {pair.ranks} ranks: {verdict(pair)[:300]}")
    counts = {
        "scripts that fail under torchrun": [not pair.legal for pair in done],
        "scripts with another end under Holdfast": [not pair.same_end for pair in done],
        "scripts with other weights under Holdfast": [pair.same_end and not pair.same_weights for pair in done],
        "scripts with an incident that acts": [pair.struck for pair in done],
    }
    for name, found in counts.items():
        report.bar(name, sum(found) if found else None, "runs", at_most=0)
    report.bar("more wall time of scripts beyond the start, median", median(slower), "%", at_most=3.0)
