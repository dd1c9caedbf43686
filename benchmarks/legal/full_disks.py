"""Full disks: a disk is filled at 30 moments, by the job's own saves and by others. No finished step is silently unsaved; the incident has the right cause.

Each moment is a job on a small tmpfs of its own, which holds its checkpoints or its whole state: the disk is full from the start, in the middle of a chunk,
while a checkpoint is being completed, after good ones, before the last; for good, for some seconds, or until a save has failed. Others have no inodes left, are
mounted read-only, or lose the directory. When the job is over its newest complete checkpoint is held against the script's own log of steps: it is of the last
one, or the last lines on the screen name every step that is in none. A save that failed and was complete within a second has no incident; the screen says both.
Mounts need root. Alone: `python -m legal.full_disks` in benchmarks/.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.jobs import Job, scratch_directory
from harness.measure import Report, arguments, say
from harness.processes import TookTooLong, wait_until

from holdfast.checkpoint.found import list_complete
from holdfast.diagnose.together import leading
from holdfast.domain.finding import SAVES

STEPS, EVERY = 200, 40
SPACE, INODES, READ_ONLY, GONE = "space", "inodes", "read-only", "gone"
SAID = {SPACE: "No space left on device|will not fit", INODES: "No space left on device|will not fit", READ_ONLY: "Read-only file system", GONE: "."}
_LOST = re.compile(r"steps? ([\d,]+)(?: to ([\d,]+))? (?:is|are) in no checkpoint")
_WITHIN_S = 240.0
_SOME_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a disk is filled, what is done to it, and until when."""

    when: str  # "at once", "chunk", "receipt", "1 saved", "2 saved", "last"; empty: its own saves fill it.
    until: str = "for good"  # Or "some seconds", "a save failed".
    ranks: int = 1
    what: str = SPACE
    whole: bool = False  # The whole state of the job lies on the disk, not its checkpoints alone.
    mb: int = 40
    left_mb: int = 0  # What whoever fills it leaves.

    def __str__(self) -> str:
        how = f"{self.what} at {self.when}, {self.until}" if self.when else f"own saves, {self.mb} MB"
        more = (", whole state" if self.whole else "") + (f", {self.left_mb} MB left" if self.left_mb else "")
        return f"{how}, {self.ranks} rank{'s' if self.ranks > 1 else ''}{more}"


WHENS = ("at once", "chunk", "receipt", "1 saved", "2 saved", "last")
MOMENTS = (
    *(Moment(when=when, until=until, ranks=1 + n % 2, whole=when != "at once" and n % 3 == 0)
      for n, (when, until) in enumerate((when, until) for until in ("for good", "some seconds", "a save failed") for when in WHENS)),
    *(Moment(when="", mb=mb, whole=mb == 14) for mb in (4, 9, 14, 21)),
    Moment(when="1 saved", left_mb=4), Moment(when="2 saved", left_mb=4, ranks=2),
    Moment(when="1 saved", until="a save failed", what=INODES), Moment(when="at once", until="some seconds", what=INODES),
    Moment(when="1 saved", what=READ_ONLY), Moment(when="2 saved", until="a save failed", what=READ_ONLY, ranks=2),
    Moment(when="1 saved", what=GONE), Moment(when="2 saved", until="a save failed", what=GONE),
)  # fmt: skip
QUICK = (MOMENTS[3], MOMENTS[13], MOMENTS[20])


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    moment: str
    code: int | None
    finished: int
    saved: int
    told: bool  # The last lines name all that is in no checkpoint.
    struck: bool  # A save failed, or was foretold to.
    causes: tuple[str, ...]  # Of the incidents.
    right: bool
    traceback: bool
    story: str = ""

    @property
    def silent(self) -> bool:
        return self.saved < self.finished and not self.told


def measure(report: Report, chosen: argparse.Namespace, scratch: Path) -> None:
    if os.geteuid() != 0:
        report.note("full disks: mounting a small disk needs root, so nothing was measured")
    moments = (QUICK if chosen.quick else MOMENTS) if os.geteuid() == 0 else ()
    with ThreadPoolExecutor(3) as pool:  # Each is mostly the start of Python.
        found = list(pool.map(lambda numbered: strike(scratch / str(numbered[0]), numbered[1]), enumerate(moments)))
    report.raw["full_disks"] = [asdict(one) for one in found]
    count = len(found) or None
    report.bar(f"full disks: steps silently unsaved, of {len(found)} moments", count and sum(one.silent for one in found), "moments", at_most=0)
    report.bar("full disks: an incident of another cause, or none", count and sum(not one.right for one in found), "moments", at_most=0)
    report.bar("full disks: ended with a traceback, or not at all", count and sum(one.traceback or one.code is None for one in found), "moments", at_most=0)
    struck, saved = sum(one.struck for one in found), sum(one.saved == one.finished for one in found)
    report.note(f"full disks: in {struck} of {len(found)} moments a save failed or was foretold to; in {saved} all was saved in the end")
    for one in found:
        if one.silent or not one.right or one.traceback or one.code is None:
            report.note(f"full disk, {one.moment}: {one}")


def strike(scratch: Path, moment: Moment) -> Filled:
    """Run a job and do to its disk what is to be done."""
    checkpoints = scratch / "state" / "jobs" / "job" / "checkpoints"
    disk = scratch / "state" if moment.whole else checkpoints
    mounted = small_disk(disk, moment) if moment.what != GONE else contextlib.nullcontext()
    with mounted, Job(scratch, "job", "saves_much.py", str(STEPS), str(EVERY), nproc=moment.ranks) as job:
        with contextlib.suppress(TookTooLong):
            if moment.when:
                wait(job, lambda: has_come(moment.when, job, checkpoints))
                with spoiled(moment, disk, checkpoints):
                    until_s = time.monotonic() + _SOME_S
                    ends = {"for good": lambda: False, "some seconds": lambda: time.monotonic() > until_s, "a save failed": lambda: has_failed(job)}
                    wait(job, ends[moment.until])
            wait(job, lambda: False)
        return judged(moment, job, checkpoints)


def wait(job: Job, seen: Callable[[], bool]) -> None:
    """Until it is seen, or the job is over."""
    wait_until(lambda: seen() or job.process.poll() is not None, within_s=_WITHIN_S, what="a moment of a full disk", every_s=0.001)


@contextlib.contextmanager
def small_disk(disk: Path, moment: Moment) -> Iterator[None]:
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={moment.mb}m,nr_inodes=4000", "tmpfs", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def has_come(when: str, job: Job, checkpoints: Path) -> bool:
    match when:
        case "at once":
            return bool(job.directory.journal.exists())
        case "chunk":
            return any(checkpoints.glob("*/chunks/*.part-*"))
        case "receipt":
            return any(not (path / "manifest.json").exists() for path in {one.parent for one in checkpoints.glob("*/rank-*.json")})
        case "last":
            return bool(job.steps.fewest_since(set()) >= STEPS - 5)
        case _:
            return len(list_complete(checkpoints)) >= int(when.split()[0])


@contextlib.contextmanager
def spoiled(moment: Moment, disk: Path, checkpoints: Path) -> Iterator[None]:
    """Do it to the disk, and undo it."""
    others, aside = disk / "others", checkpoints.with_name("aside")
    match moment.what:
        case "space":
            with others.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while os.statvfs(disk).f_bavail * 4096 > moment.left_mb << 20:
                    file.write(bytes(1 << 16))
            yield
            others.unlink(missing_ok=True)
        case "inodes":
            others.mkdir()
            with contextlib.suppress(OSError):
                for number in range(4000):
                    (others / str(number)).touch()
            yield
            shutil.rmtree(others)
        case "read-only":
            wait_until(lambda: remount("ro", disk), within_s=10.0, what="a moment in which nobody writes")
            yield
            remount("rw", disk)
        case _:
            checkpoints.rename(aside)
            checkpoints.touch()  # Or it would be made again.
            yield
            checkpoints.unlink()
            aside.rename(checkpoints)


def remount(how: str, disk: Path) -> bool:
    return subprocess.run(["mount", "-o", f"remount,{how}", disk], capture_output=True, check=False).returncode == 0


def has_failed(job: Job) -> bool:
    said = [path.read_text(errors="replace") for path in (job.log, *job.directory.logs.glob("node-*.log"))]
    return any("could not be made durable" in text or "could not be saved" in text for text in said)


def judged(moment: Moment, job: Job, checkpoints: Path) -> Filled:
    screen = job.log.read_text(errors="replace")
    finished = max((step.step for steps in job.steps.read().values() for step in steps), default=0)
    newest = next(iter(list_complete(checkpoints)), None)
    saved = newest.step if newest is not None else 0
    lost = [tuple(int(number.replace(",", "")) for number in (one[1], one[2] or one[1])) for one in _LOST.finditer(screen)]
    incidents = job.incidents()
    first = [leading(incident.findings) for incident in incidents if incident.findings]
    struck = has_failed(job) or any(finding.kind in SAVES for incident in incidents for finding in incident.findings)
    of_saves = [finding for finding in first if finding.kind in SAVES]
    made_good = not first and saved == finished and "could not be saved" in screen and "saving works again" in screen
    named = bool(of_saves) and len(of_saves) == len(first) and all(re.search(SAID[moment.what], finding.because) for finding in of_saves)
    right = not struck or made_good or named
    ended = f"the newest checkpoint is step {saved}, and what came after it is in no checkpoint" if saved else "nothing is saved"
    told = any(begin <= saved + 1 and end >= finished for begin, end in lost) or ended in screen.splitlines()[-1]
    return Filled(
        moment=str(moment), code=job.process.poll(), finished=finished, saved=saved, told=told, struck=struck,
        causes=tuple(f"{finding.kind}: {finding.because}" for finding in first), right=right, traceback="Traceback" in screen,
        story=job.last_words(8),
    )  # fmt: skip


def main() -> None:
    chosen = arguments(__doc__ or "")
    report = Report("Full disks: what is not saved is said, with the right cause")
    with scratch_directory(keep=chosen.keep) as scratch:
        measure(report, chosen, scratch)
    report.finish(chosen)
    say("done")


if __name__ == "__main__":
    main()
