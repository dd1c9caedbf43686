"""Leftovers: what a test started and did not end.

A process is a test's own when it descends from this one, or when its environment carries the test's mark: the mark is inherited across fork,
exec, double fork and setsid, so that a daemon is found too. Shared memory is a test's own when it appeared meanwhile and nobody else holds it, and so are
control groups of jobs.

Is wrong    for a process that scrubbed its environment and also lost its parents, for one forked without exec whose parents are gone, and for a
            daemon that is looked at in the middle of an exec, where it shows no environment.
Costs       two passes over /proc for a test during which anybody here started a process, and next to nothing for the others, which are most.
"""

from __future__ import annotations

import functools
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MARK = "HOLDFAST_TEST_MARK"
SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 5.0  # What was told to go may need a moment to be gone.

# Python keeps one of each for as long as the process that first needed it lives; they end with it.
LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    parent: int
    state: str
    command: str
    mark: str
    started: int  # Clock ticks since boot, because a pid alone is used again.

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    def __str__(self) -> str:
        return f"pid {self.pid} (state {self.state}, parent {self.parent}): {self.command or '?'}"


def watch(mark: str) -> Iterator[None]:
    """The body of a fixture: mark what is started from here on, and afterwards fail if any of it is left."""
    outer = os.environ.get(MARK)
    newest = newest_pid()
    processes_before = known_descendants(newest)
    memory_before, groups_before = set(shared_memory()), set(control_groups())
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK, None)
        if outer is not None:
            os.environ[MARK] = outer
    left = wait_until_empty(lambda: processes_left(mark, processes_before)) if newest_pid() != newest else []
    for process in left:
        end(process)
    # Reported but not removed: on a shared machine a name is not proof enough to delete what may be somebody else's.
    memory = wait_until_empty(lambda: unheld(name for name in shared_memory() if name not in memory_before))
    groups = wait_until_empty(lambda: unheld_groups(path for path in control_groups() if path not in groups_before))
    assert not left, "processes were left behind; end them and wait for them:\n  " + "\n  ".join(map(str, left))
    assert not memory, f"shared memory was left behind in {SHARED_MEMORY}; unlink it: {', '.join(memory)}"
    assert not groups, f"control groups were left behind; remove them: {', '.join(map(str, groups))}"


def newest_pid() -> int:
    """The last process id that was given to anybody here: as long as it is the same, nothing was started. Another one each time where that is not told."""
    return int(Path("/proc/loadavg").read_text().split()[-1]) or time.monotonic_ns()


@functools.lru_cache(maxsize=1)
def known_descendants(newest: int) -> set[tuple[int, int]]:
    """This process's descendants. Those that have ended since do no harm: an identity is not given twice."""
    return {process.identity for process in descendants()}


def wait_until_empty(look: Callable[[], list[T]]) -> list[T]:
    deadline = time.monotonic() + PATIENCE_S
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def processes_left(mark: str, before: set[tuple[int, int]]) -> list[Process]:
    """Everything alive, or dead and not reaped, that carries the mark or is a new descendant of this process."""
    everything = all_processes()
    family = {process.pid for process in descendants(everything)}
    marked = {process.pid for process in everything if process.mark == mark or process.mark.startswith(mark + "/")}
    new = [process for process in everything if process.pid in family | marked and process.identity not in before]
    return [process for process in new if process.pid != os.getpid() and not any(name in process.command for name in LASTING)]


def descendants(everything: Iterable[Process] | None = None) -> list[Process]:
    """The children of this process, their children, and so on."""
    children: dict[int, list[Process]] = {}
    for process in all_processes() if everything is None else everything:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [os.getpid()]
    while parents:
        young = children.get(parents.pop(), [])
        found += young
        parents += [process.pid for process in young]
    return found


def all_processes() -> list[Process]:
    read = (read_process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [process for process in read if process is not None]


def read_process(pid: int) -> Process | None:
    """One process as /proc shows it, or nothing when it went away meanwhile."""
    try:
        # The command in parentheses may itself hold spaces and parentheses, so the fields are counted after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    shown = command.replace(b"\0", b" ").decode(errors="replace").strip()[:300]
    return Process(pid=pid, state=fields[0], parent=int(fields[1]), started=int(fields[19]), command=shown, mark=read_mark(pid))


def read_mark(pid: int) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # Somebody else's process, or a dead one.
        return ""
    prefix = f"{MARK}=".encode()
    return next((entry.removeprefix(prefix).decode(errors="replace") for entry in environment.split(b"\0") if entry.startswith(prefix)), "")


def end(process: Process) -> None:
    """Kill it if it is still the same one, and reap it if it is a child of ours."""
    now = read_process(process.pid)
    if now is None or now.identity != process.identity:
        return
    try:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0 if now.parent == os.getpid() else os.WNOHANG)
    except (ProcessLookupError, PermissionError, ChildProcessError):
        pass


def shared_memory() -> list[str]:
    """The entries of shared memory that belong to this user."""
    found = []
    for entry in os.scandir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ():
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.append(entry.name)
        except FileNotFoundError:
            continue
    return sorted(found)


def unheld(names: Iterable[str]) -> list[str]:
    """Those that no living process has mapped, or names in its environment: what another run on this machine is using is its own affair."""
    wanted = list(names)
    if not wanted:
        return []
    held = "".join(read_proc(process.pid, file) for process in all_processes() for file in ("maps", "environ"))
    return [name for name in wanted if name not in held]


def control_groups() -> list[Path]:
    """Those of jobs, below the groups this process is in."""
    found: list[Path] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").exists() else ():
        _, controllers, path = line.split(":", 2)
        home = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
        found += home.glob("holdfast-*.*")
    return sorted(found)


def unheld_groups(paths: Iterable[Path]) -> list[Path]:
    """A group is called `holdfast-UID-DIGEST-NODE.JOB`, and every process of that node carries its first part. A job that runs beside this test may have lost
    the node to its own test a moment ago: its other nodes count too."""
    wanted = [(path, "-".join(path.name.split("-")[:3]) + "-") for path in paths]
    left = set(unheld({job for _, job in wanted}))
    return [path for path, job in wanted if job in left]


def read_proc(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:
        return ""


def sockets_under(directory: Path) -> list[str]:
    """Socket files below a directory, as paths within it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode))
