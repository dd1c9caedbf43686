"""Control killed in the middle of a recovery: does every job still finish with the right result?

A worker is killed, and while the gang is being put together again, at a random moment, control is killed too and comes back. Several times in each job.
The job must then run to its end, and the digest of weights and random state on every rank must be that of an undisturbed run, bit for bit.
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, say
from harness.processes import TookTooLong, kill, wait_until

KILLS_PER_JOB = 5
STEPS_PER_KILL = 40
TRIES = 3  # A kill that came when the recovery was over counts for nothing; so many times the kills asked for are tried.


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlKill:
    job: str
    delay_s: float  # After the worker's death.
    inside: bool  # The recovery was not over.
    back_s: float  # Until every rank had finished a step again.


def main() -> None:
    chosen = arguments(__doc__ or "", kills=(50, 10, "kills of control that fall into a recovery"))
    random.seed(chosen.seed)
    report = Report("Control killed in the middle of a recovery")
    kills: list[ControlKill] = []
    wrong: list[str] = []
    with scratch_directory(keep=chosen.keep) as scratch:
        expected = undisturbed(scratch)
        jobs = disturb(chosen, scratch, expected, kills, wrong)
    tell(report, chosen, jobs, kills, wrong)
    report.finish(chosen)


def start(scratch: Path, name: str) -> Job:
    return Job(scratch, name, "weights.py", str(STEPS_PER_KILL * (KILLS_PER_JOB + 2)), nproc=2, nodes=2)


def undisturbed(scratch: Path) -> list[str]:
    with start(scratch, "undisturbed") as job:
        code = wait_for_end(job)
    if code != 0:
        raise SystemExit(f"the run without faults left with code {code}; it said:\n{job.last_words()}")
    say("the run without faults has finished")
    return results(job)


def disturb(chosen: Namespace, scratch: Path, expected: list[str], kills: list[ControlKill], wrong: list[str]) -> int:
    """Jobs until enough kills fell into a recovery; how many jobs that took."""
    number = 0
    while sum(one.inside for one in kills) < chosen.kills and len(kills) < TRIES * chosen.kills:
        name = f"disturbed-{number}"
        with start(scratch, name) as job:
            try:
                kills += [kill_both(job, kills) for _ in range(min(KILLS_PER_JOB, chosen.kills))]
                code: int | None = wait_for_end(job)
            except (TookTooLong, RuntimeError) as error:
                say(f"{name}: {error}")
                code = None
        if code != 0 or results(job) != expected:
            wrong.append(f"{name}: code {code}, {'right' if results(job) == expected else 'wrong'} result")
        number += 1
        said = f"WRONG: {wrong[-1]}" if wrong and wrong[-1].startswith(f"{name}:") else "the right result"
        say(f"{name}: {said}; {sum(one.inside for one in kills)} of {chosen.kills} kills fell into a recovery")
    return number


def kill_both(job: Job, before: list[ControlKill]) -> ControlKill:
    job.wait_for_steps(12, old=job.steps.pids() - set(job.steps.newest_pids().values()))
    old, incidents = job.steps.pids(), len(job.incidents())
    usual_s = statistics.median([one.back_s for one in before[-15:]]) if before else 0.5
    delay_s = random.uniform(0.0, min(usual_s, 2.0))
    at, began = time.time(), time.monotonic()
    kill(random.choice(list(job.steps.newest_pids().values())), signal.SIGKILL)
    time.sleep(delay_s)
    control = job.control_pid()
    killed_at = time.time()
    if control is not None:
        kill(control, signal.SIGKILL)
    wait_until(lambda: job.steps.first_since(old) or job.process.poll() is not None, within_s=120.0, what=f"every rank of {job.name} again")
    first = job.steps.first_since(old)
    back_s = max(step.at for step in first.values()) - began if first else time.monotonic() - began
    closed_at = job.wait_for_close(incidents + 1).closed_at or 0.0
    return ControlKill(job=job.name, delay_s=killed_at - at, inside=control is not None and killed_at < closed_at, back_s=back_s)


def wait_for_end(job: Job) -> int:
    try:
        return job.process.wait(600)
    except subprocess.TimeoutExpired:
        raise TookTooLong(f"{job.name} did not end within 600 s") from None


def results(job: Job) -> list[str]:
    return [path.read_text() for path in sorted(job.scratch.glob("result-?"))]


def tell(report: Report, chosen: Namespace, jobs: int, kills: list[ControlKill], wrong: list[str]) -> None:
    inside = [one for one in kills if one.inside]
    report.series("control killed, after the worker's death by", "s", [one.delay_s for one in inside])
    report.series("every rank finished a step again after", "s", [one.back_s for one in inside])
    report.note(f"{jobs} jobs of 4 ranks on 2 nodes; {len(kills) - len(inside)} further kills came when the recovery was over.")
    report.raw["kills"] = [asdict(one) for one in kills]
    report.raw["wrong"] = wrong
    for text in wrong:
        report.note(f"Wrong: {text}")
    report.bar("control kills that fell into a recovery", len(inside), "kills", at_least=chosen.kills)
    report.bar("jobs that did not finish with the right weights, bit for bit", len(wrong), "jobs", at_most=0)


if __name__ == "__main__":
    main()
