"""Jobs on disk: find them, take hold of one, read what became of it."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from difflib import get_close_matches
from pathlib import Path

import msgspec

from holdfast.control.journal import Journal
from holdfast.domain.job import JobSpec
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


def known_job(root: Path, name: str) -> JobDirectory:
    directory = JobDirectory(root / "jobs" / name)
    if directory.journal.exists():
        return directory
    names = [one.job for one in jobs(root)]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`holdfast ps` lists what is in {root}" if names else f"no job was ever started in {root}"
    raise UserError(f"there is no job {name!r}; {hint}")


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


def runs_of(directory: JobDirectory) -> list[tuple[float, JobSpec]]:
    """When each run of the job began, and how it was to be run."""
    with closing(Journal(directory.journal, read_only=True)) as journal:
        return journal.runs()
