"""What a worker is doing right now: its Python stacks, without stopping it.

Two ways. py-spy, where it is installed, reads another process's memory and works on a stopped one too; workers allow it with PR_SET_PTRACER. Else the
worker itself writes its stacks when it gets a signal (faulthandler, set up by the warm parent): in C, so that a worker which holds the GIL or sits in a
collective answers too. A stopped worker cannot answer a signal; then the kernel's view of it is all there is, and the text says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import time
from pathlib import Path

from holdfast.agent import tree

STACK_SIGNAL = signal.SIGRTMIN + 11
STACK_BYTES_MAX = 64 << 10
_PAUSE = {"x86_64": "34"}  # Its system call. Other machines have none: there it looks like a wait for a socket.
_MAIN = "Current thread"  # The one that took the signal, which is the main one. It comes last.


def stack_path(state: Path, generation: int, rank: int) -> Path:
    return state / f"stacks-{generation}-{rank}.txt"


async def capture(pids: dict[int, int], state: Path, generation: int, *, within_s: float) -> dict[str, str]:
    """Rank, as text, to its stacks. Never fails: what cannot be had is said in the text."""
    found = await asyncio.gather(*(_capture(pid, stack_path(state, generation, rank), within_s) for rank, pid in pids.items()))
    return {str(rank): text for rank, text in zip(pids, found, strict=True)}


async def _capture(pid: int, path: Path, within_s: float) -> str:
    kernel = f"process {pid}, state {tree.state(pid) or 'gone'}, kernel function {_wchan(pid)}"
    spy = shutil.which("py-spy")
    if spy is not None:
        text = await _py_spy(spy, pid, within_s)
        if text:
            return f"{kernel}\n{text}"
    text = await _by_signal(pid, path, within_s)
    return f"{kernel}\n{text or 'no Python stack: the process does not answer signals'}"


async def _py_spy(spy: str, pid: int, within_s: float) -> str:
    process = await asyncio.create_subprocess_exec(
        spy, "dump", "--nonblocking", "--pid", str(pid), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), within_s / 2)
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return out.decode(errors="replace")[:STACK_BYTES_MAX] if process.returncode == 0 else ""


async def _by_signal(pid: int, path: Path, within_s: float) -> str:
    """Ask by signal and wait until the answer has stopped growing."""
    before = written = size(path)
    if not ask(pid):
        return ""
    deadline = time.monotonic() + within_s / 2
    while time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        now = size(path)
        if now > before and now == written:
            return read_since(path, before)
        written = now
    return read_since(path, before)


def ask(pid: int) -> bool:
    """Signals the worker to write its stacks; False when it is gone or stopped, would not understand, or waits for a signal and would take this one for it."""
    if tree.state(pid) in (None, "", "T", "Z", "X") or not _handles(pid, STACK_SIGNAL) or _is_in_pause(pid):
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, STACK_SIGNAL)
        return True
    return False


def read_since(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(STACK_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""


def newest(path: Path, since: int) -> str:
    """Returns the last answer in the file that was written behind byte `since`; empty where there is none."""
    text = read_since(path, max(since, size(path) - STACK_BYTES_MAX))
    return text[max(text.rfind(_MAIN), 0) :]


def _handles(pid: int, signum: int) -> bool:
    """A signal without a handler would kill: a program that is not Python, or a worker that has only just been forked."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signum - 1) & 1)


def _is_in_pause(pid: int) -> bool:
    """Whether the main thread is in pause(2), which any signal ends. All other waits of Python go on after one."""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[0] == _PAUSE.get(platform.machine())
    except (OSError, IndexError):
        return False


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _wchan(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "unknown"
    except OSError:
        return "unknown"
