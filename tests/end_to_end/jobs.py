"""Real jobs for tests: `Job` is a `holdfast run` in a process of its own, with everything a test asks about it.

Most jobs run `scripts/light.py` with torch hidden, because importing torch takes seconds and the loop around a job does not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import holdfast
from holdfast.cli.job import state_of
from holdfast.domain.incident import Incident
from holdfast.domain.state import State
from holdfast.launch.layout import JobDirectory
from holdfast.wire.frames import BadFrame, connect
from holdfast.wire.messages import View, Watch

PATIENCE_S = 60.0
SCRIPTS = Path(__file__).parent / "scripts"
LIGHT = SCRIPTS / "light.py"
SOURCE = Path(holdfast.__file__).parent.parent
T = TypeVar("T")


def environment(*, torch: bool = False, **more: str) -> dict[str, str]:
    """Ours, with Holdfast importable; without torch unless asked for."""
    path = [*([] if torch else [str(SCRIPTS / "no_torch")]), str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}


def eventually(look: Callable[[], T], *, within_s: float = PATIENCE_S, what: str = "") -> T:
    """The first true answer; the test fails when there is none in time."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what or look} did not come true within {within_s:g} s; the last answer was {found!r}"
        time.sleep(0.02)


def command(*arguments: object, torch: bool = False, cwd: Path | None = None, within_s: float = PATIENCE_S, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one `holdfast` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *map(str, arguments)], env=environment(torch=torch, **more), cwd=cwd, capture_output=True, check=False,
        stdin=subprocess.DEVNULL, timeout=within_s, text=True, errors="replace",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """One process that `light.py` was started in."""

    generation: int
    rank: int
    pid: int


class Job:
    """`with Job(state, ...) as job:` runs a job in the background; whatever happens, nothing of it is left afterwards."""

    def __init__(
        self, state: Path, name: str = "job", *, options: Sequence[object] = (), script: Path = LIGHT, arguments: Sequence[object] = (), torch: bool = False,
        env: dict[str, str] | None = None, verb: str = "run", group: Path | None = None,
    ) -> None:  # fmt: skip
        """`group`: a control group of its own that it is started in, as a service with Delegate=yes is."""
        self.name = name
        self.directory = JobDirectory(state / "jobs" / name)
        self.kept = state / f"kept-{name}"
        self.kept.mkdir(exist_ok=True)
        self.stdout, self.stderr = state / f"{name}.out", state / f"{name}.err"
        if script == LIGHT:
            arguments = (self.kept, *arguments)
        tail = [*options, "--name", name, script, *arguments] if verb == "run" else [*options, name]
        self._command = [sys.executable, "-m", "holdfast.cli", verb, *map(str, tail)]
        if group is not None:
            self._command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *self._command]
        self._environment = environment(torch=torch, HOLDFAST_STATE=str(state), **(env or {}))
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Job:
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self.process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """A test that failed in the middle ends its job at once: two interrupts, and then a kill."""
        for signum in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.5 if signum is signal.SIGINT else PATIENCE_S)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """The exit code of `holdfast run`."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end within {within_s:g} s:\n{self.said()}") from None

    def finished(self, within_s: float = PATIENCE_S) -> State:
        """Wait for the end, which must be a good one."""
        code = self.wait(within_s)
        assert code == 0, f"exit code {code}:\n{self.said()}"
        return self.state()

    def state(self) -> State:
        """What the journal says now."""
        return state_of(self.directory)

    def incidents(self) -> list[Incident]:
        return self.state().incidents

    def said(self) -> str:
        """All that was printed, by the job and by Holdfast's own processes: for the message of a failed test."""
        logs = sorted(self.directory.logs.glob("*.log")) if self.directory.logs.is_dir() else []
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in (self.stdout, self.stderr, *logs))

    # What `light.py` writes down.

    def starts(self) -> list[Start]:
        path = self.kept / "starts"
        return [Start(*map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []

    def step(self, rank: int = 0) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.kept / f"rank-{rank}").read_text())
        return -1

    def result(self) -> str:
        return (self.kept / "result").read_text()

    def wait_for_step(self, step: int) -> None:
        eventually(lambda: self.step() >= step or self.process.poll() is not None, what=f"step {step} of {self.name}")
        assert self.step() >= step, f"the job ended before step {step}:\n{self.said()}"

    def hurry(self) -> None:
        """What the steps were long for has been seen: from here on `light.py`, `ddp.py` and `gone_wrong.py` wait for nothing in a step."""
        (self.kept / "hurry").touch()

    def pid(self, rank: int) -> int:
        """Of the newest process of a rank."""
        return [start.pid for start in self.starts() if start.rank == rank][-1]

    # What control says.

    def view(self) -> View | None:
        """The job as control sees it now; None while control is not there."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return asyncio.run(asyncio.wait_for(self._view(), 5.0))
        return None

    async def _view(self) -> View | None:
        channel = await connect(self.directory.control_socket)
        try:
            channel.send(Watch())
            with contextlib.suppress(BadFrame):
                async for message in channel:
                    if isinstance(message, View):
                        return message
        finally:
            await channel.closed()
        return None

    def processes(self, *words: str) -> list[int]:
        """Living processes below `holdfast run` whose command line holds every word."""
        found = [(pid, parts) for pid, parts in _command_lines() if all(any(word in part for part in parts) for word in words)]
        return [pid for pid, parts in found if any(str(self.directory.path) in part for part in parts) or _belongs(pid, self.directory)]

    def control(self) -> int:
        return eventually(lambda: self.processes("holdfast.control"), what="control")[0]

    def agent(self, node: str = "node-0") -> int:
        return eventually(lambda: self.processes("holdfast.agent", f"{node}/state"), what=f"the agent of {node}")[0]

    def warm_parent(self, node: str = "node-0") -> int:
        where = str(self.directory.node_state(node))
        return eventually(lambda: [pid for pid in self.processes("holdfast parent") if _directory_of(pid) == where], what=f"the warm parent of {node}")[0]


def _command_lines() -> list[tuple[int, list[str]]]:
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdecimal() and (line := Path(f"/proc/{name}/cmdline").read_bytes()):
                found.append((int(name), line.decode(errors="replace").split("\0")))
    return found


def _belongs(pid: int, directory: JobDirectory) -> bool:
    return _directory_of(pid).startswith(str(directory.path))


def _directory_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def expected_result(steps: int, world_size: int | Callable[[int], int]) -> str:
    """What `light.py` ends with when every step was taken exactly once, by so many ranks."""
    state = b""
    for step in range(steps):
        ranks = world_size if isinstance(world_size, int) else world_size(step)
        words = [hashlib.sha256(state + f"{step}/{rank}".encode()).digest() for rank in range(ranks)]
        # Ranks other than 0 send words of a fixed length.
        together = b"".join([words[0], *(word.ljust(33) for word in words[1:])])
        state = hashlib.sha256(hashlib.sha256(together).digest()).digest()
    return state.hex()


def lose_node(job: Job, name: str) -> bytes:
    """What the end of a machine looks like from outside: its processes, its disk and its memory are gone, in no order that anybody chose. With what it gives
    back `bring_back` makes it anew."""
    # The specification first: without it nobody starts the agent again.
    agent, parent = job.agent(name), job.warm_parent(name)
    spec = job.directory.node_spec(name).read_bytes()
    job.directory.node_spec(name).unlink()
    os.kill(agent, signal.SIGKILL)
    os.kill(parent, signal.SIGKILL)  # Its workers have the parent-death signal on it.
    for path in (job.directory.nodes / name, job.directory.node_shared_memory(name)):
        shutil.rmtree(path, ignore_errors=True)
    return spec


def bring_back(job: Job, name: str, spec: bytes) -> None:
    """The machine is there again, empty."""
    for path in (job.directory.node_state(name), job.directory.node_scratch(name), job.directory.node_shared_memory(name)):
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
    part = job.directory.node_spec(name).with_suffix(".part")
    part.write_bytes(spec)
    part.rename(job.directory.node_spec(name))
