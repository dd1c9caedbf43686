"""Running a way: real processes with a deadline, their logs and exits kept, nothing left behind.

Importing torch costs seconds, so scripts that need it run in processes forked from one that has imported it. What they print is what a fresh interpreter would:
the frames of this module are taken off a traceback.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from zlib import crc32

from incidents.way import Way

_JOBS = Path(__file__).parent / "jobs"
_PYTHON = sys.executable
_CALLED = ("train.py", "main.py", "run.py", "finetune.py", "pretrain.py")  # What people call it: the script's own name would give the answer away.


@dataclass(slots=True)
class Running:
    """What `during` of a way gets: the processes by rank, and their logs."""

    pids: list[int]
    logs: list[Path]
    deadline: float
    group: int = 0  # Where a launcher was started: its process group.
    exits: dict[int, int] = field(default_factory=dict)

    def kill(self, number: int, rank: int = 0) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[rank], number)

    def until_said(self, text: str, *, rank: int = 0) -> None:
        """Wait until a log holds this, or the time is up."""
        while time.monotonic() < self.deadline and text not in self.logs[rank].read_text(errors="replace") and not self.ended():
            time.sleep(0.02)

    def ended(self) -> bool:
        for rank, pid in enumerate(self.pids):
            if rank not in self.exits:
                with contextlib.suppress(ChildProcessError):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        self.exits[rank] = os.waitstatus_to_exitcode(status)
        return len(self.exits) == len(self.pids)

    def wait(self) -> bool:
        """Whether all ended by themselves in time; what did not is killed, and with it whatever it has started."""
        while not self.ended() and time.monotonic() < self.deadline:
            time.sleep(0.02)
        in_time = self.ended()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        limit = time.monotonic() + 5
        while not self.ended() and time.monotonic() < limit:
            time.sleep(0.02)
        return in_time


def run(way: Way, out: Path, scratch: Path, url: str) -> tuple[bool, dict[int, int]]:
    """Whether it ended in time, and each rank's exit code (negative: a signal). Logs are in `out`."""
    scratch.mkdir(parents=True, exist_ok=True)
    scratch.chmod(0o755)
    if way.prepare is not None:
        way.prepare(scratch)
    port = free_port()
    script = put(way, scratch)
    command = [text.replace("{dir}", str(scratch)).replace("{port}", str(port)).replace("{url}", url) for text in way.command]
    environment = dict(way.env)
    if command[0] not in ("train.py", "restarts.sh"):
        environment["JOB"] = json.dumps(command[1:])
        command = command[:1]
    command[0] = str(script)
    kernel = kernel_lines() if way.kernel_log else []
    started = (_forked if way.launch == "fork" else _launched)(way, command, out, scratch, port, environment)
    try:
        if way.during is not None:
            way.during(started)
    finally:
        in_time = started.wait()
    if way.kernel_log:
        said = [line for line in kernel_lines() if line not in set(kernel)]
        (out / "kernel.log").write_text("\n".join(said) + "\n")
    return in_time, started.exits


def put(way: Way, scratch: Path) -> Path:
    """The script where a user would have it, under a name that tells nothing."""
    directory = scratch / "project"
    directory.mkdir()
    name = way.command[0]
    if not (_JOBS / name).exists():
        return directory / name  # A way may be that it is not there.
    for other in ("several.py",) if name == "spawned.py" else ():
        shutil.copy(_JOBS / other, directory / other)
    called = name if name.endswith(".sh") else _CALLED[crc32(way.full_name.encode()) % len(_CALLED)]
    return Path(shutil.copy(_JOBS / name, directory / called))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def kernel_lines() -> list[str]:
    if shutil.which("dmesg") is None:
        return []
    return subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, check=False).stdout.splitlines()


def _forked(way: Way, command: Sequence[str], out: Path, scratch: Path, port: int, given: dict[str, str]) -> Running:
    pids, logs = [], []
    for rank in range(way.ranks):
        log = out / ("job.log" if way.one_log else f"rank{rank}.log")
        log.touch()
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(way.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        pids.append(_fork(lambda rank=rank: way.inside(scratch, rank) if way.inside else None, command, log, scratch, {**environment, **given}))
        logs.append(log)
    return Running(pids=pids, logs=logs, deadline=time.monotonic() + way.within_s)


def _fork(inside: Callable[[], None], command: Sequence[str], log: Path, cwd: Path, environment: dict[str, str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, file), (2, file)):
            os.dup2(source, target)
        os.environ.update(environment)
        os.chdir(cwd)
        inside()
        _become(command)
    finally:
        os._exit(70)


def _become(command: Sequence[str]) -> NoReturn:
    """The rest of this process's life is the script's, as `python script …` would have it."""
    path = Path(command[0])
    sys.argv = list(command)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException as error:
        with contextlib.suppress(RuntimeError):  # A loader's signal handler may raise once more while this is printed.
            traceback.print_exception(type(error), error, error.__traceback__.tb_next if error.__traceback__ else None)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def _launched(way: Way, script: Sequence[str], out: Path, scratch: Path, port: int, given: dict[str, str]) -> Running:
    """A launcher of its own, in its own process group; `inside` runs in the launcher's process."""
    log = out / "job.log"
    if way.launch == "bash":
        batch = scratch / "job.sh"
        lines = "; ".join(f"export {name}={value!r}" for name, value in given.items()) or ":"
        batch.write_text(f"#!/bin/bash\n{lines}\necho starting on $(hostname)\n{way.before}{_PYTHON} {' '.join(script)}\nstatus=$?\nexit $status\n")
        line = ["bash", str(batch)]
    elif way.launch == "torchrun":
        line = [_PYTHON, "-m", "torch.distributed.run", f"--nproc-per-node={way.ranks}", f"--master-port={port}", *script]
    elif way.launch == "holdfast":
        options = ["--state", str(scratch / "state"), "--name", "training", f"--nproc-per-node={way.ranks}", "--max-restarts", "0"]
        line = [_PYTHON, "-m", "holdfast.cli", "run", *options, *script]
    elif way.launch == "restarts":
        line = ["bash", script[0], _PYTHON, script[1]]
    else:
        line = [_PYTHON, *script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **({} if way.launch == "bash" else given)}
    with log.open("ab") as file:
        process = subprocess.Popen(
            line, cwd=scratch, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            preexec_fn=(lambda: way.inside(scratch, 0)) if way.inside else None,
        )  # fmt: skip
    return Running(pids=[process.pid], logs=[log], deadline=time.monotonic() + way.within_s, group=process.pid)

