"""Processes that a benchmark starts: marked, so that all of them are found again, and ended, so that none is left.

The mark is an environment variable. It is inherited by fork, exec and setsid, and so finds what a killed launcher left behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import holdfast

_MARK = "HOLDFAST_BENCHMARK"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LEAVING_S = 5.0  # What was told to go may need a moment to be gone, on a busy machine.
_LISTENS = "0A"  # As /proc/net/tcp writes it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    parent: int
    state: str
    command: str
    cpu_s: float


class TookTooLong(Exception):
    """Something that was waited for did not come."""


def wait_until(seen: Callable[[], Any], *, within_s: float, what: str, every_s: float = 0.02) -> Any:
    """Poll until `seen` gives something true, and return that."""
    deadline = time.monotonic() + within_s
    while not (found := seen()):
        if time.monotonic() > deadline:
            raise TookTooLong(f"waited {within_s:.0f} s for {what}, which did not come")
        time.sleep(every_s)
    return found


class Launched:
    """A command and everything that comes of it. Use it in `with`: at the end nothing of it is left. What would have been is written down beside its log, in
    a file of the same name that ends in `.left`: a line for each thing."""

    def __init__(self, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._mark = secrets.token_hex(8)
        self.log = log
        source = str(Path(holdfast.__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH", ""))))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {}), _MARK: self._mark}
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def processes(self) -> list[Process]:
        """All that carry the mark and live, the launcher first."""
        found = [one for one in _all_processes(f"{_MARK}={self._mark}".encode()) if one.state != "Z"]
        return sorted(found, key=lambda one: (one.pid != self.process.pid, one.pid))

    def find(self, *words: str) -> list[Process]:
        """Those in whose command line all the words occur."""
        return [one for one in self.processes() if all(word in one.command for word in words)]

    def end(self, *, patience_s: float = 30.0) -> int:
        """Ask the launcher to leave, write down what it has left, then kill that; how many had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.log.with_suffix(".left").write_text("".join(f"{one}\n" for one in self.left()))
        return self.sweep()

    def left(self) -> list[str]:
        """What is there of it although it should be gone: processes, and the ports at which they listen."""
        deadline = time.monotonic() + _LEAVING_S
        while (there := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [one for process in there for one in (f"process {process.pid}: {process.command[:200] or '?'}", *_ports_of(process.pid))]

    def sweep(self) -> int:
        """Kill everything marked, by its pid, until nothing is there."""
        killed: set[int] = set()
        deadline = time.monotonic() + 30.0
        while (left := self.processes()) and time.monotonic() < deadline:
            for one in left:
                kill(one.pid, signal.SIGKILL)
                killed.add(one.pid)
            if self.process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.1)
            time.sleep(0.02)
        self.process.poll()
        return len(killed)

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def kill(pid: int, signum: signal.Signals) -> bool:
    """Whether there was such a process to signal."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    one = _read(pid)
    return one.cpu_s if one is not None else 0.0


def _all_processes(mark: bytes) -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and mark in _environment(int(name)):
            one = _read(int(name))
            if one is not None:
                yield one


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # Gone, or somebody else's.
        return b""


def _ports_of(pid: int) -> list[str]:
    """Where a process listens, in whatever network it is."""
    held, found = set[str](), []
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                held.add(os.readlink(fd))
        lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    except OSError:  # It is gone, and its sockets with it.
        return []
    for fields in lines:
        if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in held:
            found.append(f"port {int(fields[1].rpartition(':')[2], 16)} of process {pid}")
    return found


def _read(pid: int) -> Process | None:
    try:
        # The name in parentheses may itself hold spaces and parentheses, so the fields are counted after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    used = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return Process(pid=pid, parent=int(fields[1]), state=fields[0], command=command, cpu_s=used)
