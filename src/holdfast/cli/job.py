"""Jobs on disk: find them, take hold of one, read what became of it."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path

import msgspec

from holdfast.checkpoint.found import newest_complete
from holdfast.control.journal import Journal
from holdfast.control.seen import last_seen
from holdfast.domain.job import JobPhase, JobSpec
from holdfast.domain.state import State
from holdfast.errors import UserError
from holdfast.launch.layout import JobDirectory

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def jobs(root: Path) -> list[JobDirectory]:
    """Every job that was ever started here, newest first."""
    found = [JobDirectory(path) for path in (root / "jobs").glob("*") if (path / "journal.db").exists()]
    return sorted(found, key=lambda one: one.journal.stat().st_mtime, reverse=True)


def new_job(root: Path, name: str) -> JobDirectory:
    """The directory of a job, made if it is not there yet."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} cannot be a job's name; use letters, digits, '.', '_' and '-', at most 63, beginning with a letter or digit")
    directory = JobDirectory(root / "jobs" / name)
    try:
        directory.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = directory.path / ".writable"
        probe.write_bytes(b"holdfast")
        probe.unlink()
    except OSError as error:
        raise UserError(f"the state directory {root} cannot be written: {error.strerror}; choose another with --state or HOLDFAST_STATE") from error
    return directory


def known_job(root: Path, name: str, *, newest: bool = False) -> JobDirectory:
    """The job of this name, or the only one whose name begins so. `newest`: without a name it is the newest, as only those may ask for who look."""
    directory = JobDirectory(root / "jobs" / name)
    if name and directory.journal.exists():
        return directory
    found = [one for one in jobs(root) if (one.job.startswith(name) if name else newest)]
    if len(found) == 1 or (found and not name):
        return found[0]
    if found:
        shown = ", ".join(one.job for one in found[:5])
        raise UserError(f"{len(found)} jobs begin with {name!r}: {shown}{', …' if len(found) > 5 else ''}; give more of the name")
    names = [one.job for one in jobs(root)]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`holdfast ps` lists what is in {root}" if names else f"no job was ever started in {root}"
    raise UserError(f"there is no job {name!r}; {hint}" if name or names else hint)


@contextmanager
def hold(directory: JobDirectory) -> Iterator[int]:
    """Be the one who runs this job. The lock goes with the process, however it ends."""
    fd = os.open(directory.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode().strip() or "unknown"
            raise UserError(
                f"job {directory.job!r} is being run already, by process {holder}; watch it with `holdfast attach {directory.job}`, or choose another --name"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield fd
    finally:
        os.close(fd)


def is_held(directory: JobDirectory) -> bool:
    """Whether somebody runs this job now."""
    try:
        fd = os.open(directory.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def spec_of(directory: JobDirectory) -> JobSpec:
    """How the job was run last."""
    try:
        return msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(
            f"how job {directory.job!r} was run cannot be read from {directory.spec}: {error}; "
            f"`holdfast run --name {directory.job} …` writes it anew, and goes on from the newest checkpoint"
        ) from error


def state_of(directory: JobDirectory) -> State:
    with closing(Journal(directory.journal, read_only=True)) as journal:
        return journal.load().state


def state_now(directory: JobDirectory) -> State:
    """Returns the state as it is now: the journal, and what is newer than its last event. A job that nobody runs and that has not ended is lost."""
    held = is_held(directory)  # Asked first: a job that ends meanwhile has its end in the journal.
    state = state_of(directory)
    if state.spec is None:
        return state
    seen = last_seen(directory.seen)
    if seen is not None and seen.generation == state.generation:
        state.step, state.step_best = max(state.step, seen.step), max(state.step_best, seen.step)
    newest = newest_complete(directory.checkpoints)
    state.saved_step = newest.step if newest is not None else state.saved_step
    if state.outcome is None and held:
        state.ledger = state.ledger.up_to(time.time())
    elif state.outcome is None:
        state.ledger = state.ledger.up_to(seen.at if seen is not None else state.at)
        state.phase, state.because = JobPhase.LOST, f"its launcher is gone; `holdfast resume {directory.job}` goes on {_from(state)}"
    return state


def _from(state: State) -> str:
    return f"from step {state.saved_step:,}" if state.saved_step >= 0 else "from the start, since no checkpoint is there"


def not_running(directory: JobDirectory) -> str:
    """Says why nothing can be asked of a job that nobody runs."""
    state = state_now(directory)
    if state.phase is JobPhase.LOST:
        return f"job {directory.job!r} is lost: {state.because}"
    return f"job {directory.job!r} is not running; `holdfast show {directory.job}` says how it ended"


def runs_of(directory: JobDirectory) -> list[tuple[float, JobSpec]]:
    """When each run of the job began, and how it was to be run."""
    with closing(Journal(directory.journal, read_only=True)) as journal:
        return journal.runs()
