"""Real hangs of nine kinds in jobs of 2 and 3 ranks with quick steps: each is found, the right rank is named, and no other one is killed as the culprit.

Where every rank waits in a collective or does not run at all, the signs are unanimous and something is done at once. What spins or blocks outside a collective
may be work: it is told first, and something is done at its limit, which `--hang-limit` sets here. Times run from the hang to when, by
the journal, the first incident was opened, and the gang was stopped.
"""

from __future__ import annotations

import random
import threading
import time
from argparse import Namespace
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGSTOP

from harness.jobs import Job
from harness.measure import Report, commit, percentile, say
from harness.processes import TookTooLong, kill, wait_until

from holdfast.domain.incident import Incident, IncidentPhase
from legal.record import Record
from legal.run_scripts import acts

STOPPED, ORDER = "stopped", "order"
UNANIMOUS = (STOPPED, ORDER)
KINDS = (*UNANIMOUS, "deadlock", "mutex", "loader", "read", "spin", "spin in C", "absent")
QUICK_STEPS = 150  # Between two hangs, in new processes: a hundred quick steps have been seen.
HANG_LIMIT_S = 75.0
TOLD_WITHIN_S, ACTED_AT_ONCE_S = 60.0, 10.0
FOUND_WITHIN_S = 180.0  # A hang for which nothing was done by then is not found.
GIVE_UP_AFTER = 3  # Jobs that did not get as far as a hang.
LATE_S = 15.0  # Beyond the limit, for the second look and the stacks.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    kind: str
    ranks: int
    rank: int
    told_s: float | None
    acted_s: float | None
    named: bool
    accused: tuple[int, ...]  # Whom the diagnosis names.
    said: tuple[str, ...]
    commit: str

    @property
    def other_accused(self) -> bool:
        """Only others were named. Of two ranks that wait for each other in different collectives either may be the culprit."""
        return bool(self.accused) and self.rank not in self.accused and not (self.kind == ORDER and self.ranks == 2)


def measure(report: Report, chosen: Namespace, scratch: Path) -> None:
    record = Record(chosen.record, "hangs")
    done = [Hang(**line) for line in record.read()]
    wanted = [kind for kind in KINDS if not chosen.kinds or kind in chosen.kinds.split(",")]
    left = list((Counter(dict.fromkeys(wanted, chosen.hangs)) - Counter(one.kind for one in done)).elements())
    random.Random(chosen.seed).shuffle(left)
    stopped = threading.Event()
    with ThreadPoolExecutor(chosen.lanes) as pool:
        shares = [left[n :: chosen.lanes] for n in range(chosen.lanes)]
        lanes = [pool.submit(lane, scratch / f"lane-{n}", kinds, 2 + n % 2, record, stopped) for n, kinds in enumerate(shares)]
        try:
            done += [hang for one in lanes for hang in one.result()]
        finally:
            stopped.set()
    tell(report, [one for one in done if one.kind in wanted])


def lane(scratch: Path, kinds: list[str], ranks: int, record: Record, stopped: threading.Event) -> list[Hang]:
    """One hang after the other in one job; a job that does not come back is followed by another one."""
    dice, done, jobs = random.Random(scratch.name), list[Hang](), 0
    scratch.mkdir()
    while len(done) < len(kinds) and jobs - len(done) < GIVE_UP_AFTER and not stopped.is_set():
        jobs += 1
        with Job(scratch, f"job-{jobs}", "hanging_ddp.py", nproc=ranks, options=("--hang-limit", f"{HANG_LIMIT_S:g}s")) as job:
            old: set[int] = set()
            while len(done) < len(kinds) and not stopped.is_set():
                try:
                    job.wait_for_steps(QUICK_STEPS + dice.randrange(60), old=old, within_s=300.0)  # At another step: the same one twice ends the job.
                except (TookTooLong, RuntimeError) as error:
                    say(f"{scratch.name}: THE JOB DID NOT COME BACK: {error}")
                    break
                old = job.steps.pids()
                hang = strike(job, kinds[len(done)], dice.randrange(ranks))
                done.append(hang)
                say(f"hangs, {scratch.name}, {len(done)} of {len(kinds)}: {hang.kind} (rank {hang.rank} of {ranks}): {verdict(hang)}")
                record.add(hang)
                if hang.acted_s is None:
                    break
    return done


def strike(job: Job, kind: str, rank: int) -> Hang:
    known = len(job.incidents())
    at = begin(job, kind, rank)
    try:
        wait_until(lambda: any(map(acts, job.incidents()[known:])), within_s=FOUND_WITHIN_S, what=f"something to be done for {kind}", every_s=0.5)
        wait_until(lambda: not any(one.is_open for one in job.incidents()[known:] if acts(one)), within_s=120.0, what="the end of it", every_s=0.5)
    except TookTooLong as error:
        say(f"{job.name}: {error}")
    new = job.incidents()[known:]
    acted = [one for one in new if acts(one)]
    accused = acted[0].diagnoses[0].ranks if acted and acted[0].diagnoses else ()
    either = kind == ORDER and job.world_size == 2
    return Hang(
        kind=kind, ranks=job.world_size, rank=rank, told_s=min(one.opened_at for one in new) - at if new else None,
        acted_s=stopped_at(acted[0]) - at if acted else None, named=bool(accused) if either else accused == (rank,), accused=tuple(accused),
        said=tuple("; ".join(line.what for line in one.story) for one in new), commit=commit(),
    )  # fmt: skip


def begin(job: Job, kind: str, rank: int) -> float:
    """Make a rank hang; when it did."""
    if kind == STOPPED:
        kill(job.steps.newest_pids()[rank], SIGSTOP)
        return time.time()
    began = job.scratch / "began"
    began.unlink(missing_ok=True)
    (job.scratch / "do.new").write_text(kind)
    (job.scratch / "do.new").replace(job.scratch / f"do-{rank}")
    wait_until(began.exists, within_s=60.0, what=f"rank {rank} to hang")
    return float(began.read_text())


def stopped_at(incident: Incident) -> float:
    """When its gang was told to stop."""
    stopping = (line.at for line in incident.story if line.what.startswith(f"{IncidentPhase.STOPPING}:"))
    return min((*stopping, *incident.acted), default=incident.opened_at)


def verdict(hang: Hang) -> str:
    if hang.acted_s is None or hang.told_s is None:
        return f"NOT FOUND; said: {' | '.join(hang.said) or 'nothing'}"
    named = "named" if hang.named else f"NOT NAMED, but {hang.accused or 'nobody'}"
    return f"told after {hang.told_s:.1f} s, acted after {hang.acted_s:.1f} s, {named}"


def tell(report: Report, done: list[Hang]) -> None:
    for kind in KINDS:
        of_it = [one for one in done if one.kind == kind]
        acted = [one.acted_s for one in of_it if one.acted_s is not None]
        report.series(f"hang, {kind}: until acted on", "s", acted, f"found {len(acted)} of {len(of_it)}, named {sum(one.named for one in of_it)}")
    found = [one for one in done if one.acted_s is not None]
    at_once = [one.acted_s or FOUND_WITHIN_S for one in done if one.kind in UNANIMOUS]
    outside = [one for one in done if one.kind not in UNANIMOUS]
    report.raw["hangs"] = [asdict(one) for one in done]
    report.bar("hangs found", len(found) / len(done) if done else None, "", at_least=1.0)
    report.bar("hangs: culprit named", sum(one.named for one in done) / len(done) if done else None, "", at_least=0.95)
    report.bar("hangs: only another rank accused", sum(one.other_accused for one in done) if done else None, "hangs", at_most=0)
    report.bar("hangs with unanimous signs: acted on, 99th percentile", percentile(at_once, 0.99), "s", at_most=ACTED_AT_ONCE_S)
    report.bar("hangs outside a collective: told, slowest", max((one.told_s or FOUND_WITHIN_S for one in outside), default=None), "s", at_most=TOLD_WITHIN_S)
    report.bar("the same: acted on, slowest", max((one.acted_s or FOUND_WITHIN_S for one in outside), default=None), "s", at_most=HANG_LIMIT_S + LATE_S)
