"""Signs of a rank that has stopped moving: whether it works, where in the script it is, and what it waits for.

    a beat comes        only the processor time of its processes is read
    none comes          their I/O too, once a second, and its stack, ever more rarely

The looks go on for as long as the rank is quiet. Each costs some files of /proc; a stack costs the rank a signal.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.agent.tree import TICKS_PER_S, Process
from holdfast.diagnose.odd_stack import place_of
from holdfast.domain.signs import BEGUN, COLLECTIVE, DATA, ELSEWHERE, Signs

QUIET_AFTER_S: Final = 1.5  # A rank that has beaten within this time moves.
_SAMPLE_SHARE: Final = 0.1  # One that is quiet for long is asked for its stack again after this share of that time.
_FRESH_S: Final = 2.5  # An answer is read at the next look. What is read later says where the rank was, not where it is.
_LOOK_MAX_S: Final = 3.0  # More between two looks is time in which we were stopped ourselves, maybe together with the rank.
_LOOK_USUAL_S: Final = 1.0  # What counts of such a gap: an agent that is always late must see a hang all the same.
_WORKS: Final = 0.02  # Of one core,
_RUNS: Final = 0.05  # and of a main thread, which spends some time on writing its stack when it is asked.
_WOKEN: Final = 10.0  # Times a second. To be asked for its stack wakes it once or twice.
_MOVES_BYTES: Final = 65536.0  # A second. Less is a heartbeat, not a transfer.
_INNERMOST: Final = 3
_NO_COLLECTIVE: Final = ("/distributed/checkpoint/", "/distributed/elastic/", "/distributed/optim/", "/distributed/tensor/")
_PACKS: Final = ("_object_to_tensor", "_tensor_to_object")  # These compute, although they stand beside the collectives.
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3.", "/holdfast/trainer/", "/holdfast/agent/")
_SYSTEM_CALLS: Final = {
    "x86_64": {
        "sleeps": (35, 230), "waits for a lock": (202,), "waits for a process": (61, 247), "waits for a file lock": (73,),
        "waits for a socket": (42, 43, 45, 47, 288), "waits for a socket or a pipe": (7, 23, 232, 270, 271, 281),
    },
    "aarch64": {
        "sleeps": (101, 115), "waits for a lock": (98,), "waits for a process": (95, 260), "waits for a file lock": (32,),
        "waits for a socket": (202, 203, 207, 212, 242), "waits for a socket or a pipe": (22, 72, 73),
    },
}  # fmt: skip
_READ: Final = {"x86_64": 0, "aarch64": 63}


Pending = Callable[[], frozenset[tuple[str, int]]]  # Group and number of each collective that has not ended on the rank's GPU.


class Frame(NamedTuple):
    file: str
    function: str
    line: str


@dataclass(slots=True)
class SignsOfRank:
    """What was seen of one process of one rank. `look` once a second, `signs` at any time."""

    quiet_s: float = 0.0
    stopped_s: float = 0.0
    main_idle_s: float = 0.0
    main_busy_s: float = 0.0
    own_idle_s: float = 0.0
    children_idle_s: float = 0.0
    io_idle_s: float = 0.0
    stack_s: float | None = None
    sampled_s: float | None = None
    pending_s: float | None = None
    inside: str = ""
    doing: str = ""
    state: str = ""
    _looked_at: float | None = None
    _beat_ns: int = -1
    _cpu: dict[int, float] = field(default_factory=dict)
    _main: tuple[float, int] | None = None  # The processor time of its main thread, and how often it was woken.
    _io_bytes: int | None = None
    _stack: tuple[str, ...] = ()
    _stable: tuple[Frame, ...] | None = None  # The user's frames that have not changed since it fell quiet, outermost first,
    _below: str = ""  # the function below them if that is the same in all samples,
    _shown: Frame | None = None  # and the newest frame of it.
    _pending: frozenset[tuple[str, int]] = frozenset()  # The collectives that have not ended on its GPU.
    _asked_s: float | None = None  # Since it was asked for its stack.
    _next_sample_s: float = 0.0

    def look(
        self, beat_ns: int, processes: Sequence[Process], sample: Callable[[], str], now: float, *, ask_after_s: float = 0.0, pending: Pending = frozenset,
    ) -> None:  # fmt: skip
        """Takes a look. The first of `processes` is the rank's own. `sample` returns the answer to the question before, and asks again, and so does `pending`;
        that is not done before the rank has been quiet for `ask_after_s`."""
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        if passed_s > _LOOK_MAX_S:
            passed_s, self._asked_s = _LOOK_USUAL_S, None  # And an answer to a question from before is not where the rank is.
        self._looked_at = now
        self.state = processes[0].state if processes else "Z"
        self.stopped_s = self.stopped_s + passed_s if self.state == "T" else 0.0
        if beat_ns != self._beat_ns:
            self._moved(beat_ns)
        else:
            self.quiet_s += passed_s
        self._look_at_processor(processes, passed_s)
        if self.quiet_s >= max(QUIET_AFTER_S, ask_after_s):
            self._look_at_main_thread(processes, passed_s)
            self._look_at_files(processes, passed_s)
            self._look_at_stack(sample, pending, passed_s)
            self.doing = what_it_does(processes[0].pid) if processes and self.state not in ("R", "T") else ""

    @property
    def quiet(self) -> bool:
        return self.quiet_s >= QUIET_AFTER_S or self.stopped_s >= QUIET_AFTER_S

    def signs(self, *, usual_s: float, quick: bool, on_gpu: bool = False, group_timeout_s: float | None = None) -> Signs:
        return Signs(
            quiet_s=self.quiet_s, usual_s=usual_s, quick=quick, process_state=self.state, stopped_s=self.stopped_s, inside=self.inside, doing=self.doing,
            place=self._place(), where=self._where(), stack_s=self.stack_s, sampled_s=self.sampled_s,
            main_idle_s=self.main_idle_s, main_busy_s=self.main_busy_s,
            own_idle_s=self.own_idle_s, children_idle_s=self.children_idle_s, io_idle_s=self.io_idle_s,
            on_gpu=on_gpu, pending_s=self.pending_s, group_timeout_s=group_timeout_s,
        )  # fmt: skip

    def _moved(self, beat_ns: int) -> None:
        self._beat_ns, self.quiet_s = beat_ns, 0.0
        self.stack_s = self.sampled_s = self.pending_s = self._stable = self._shown = self._io_bytes = self._main = None
        self.main_idle_s = self.main_busy_s = 0.0
        self.inside = self.doing = self._below = ""
        self._stack, self._pending, self._asked_s, self._next_sample_s = (), frozenset(), None, 0.0

    def _look_at_processor(self, processes: Sequence[Process], passed_s: float) -> None:
        used = {process.pid: process.cpu_s for process in processes}
        own = next(iter(used), 0)
        spent = {pid: cpu_s - self._cpu.get(pid, 0.0 if self._cpu and pid != own else cpu_s) for pid, cpu_s in used.items()}
        works_s = _WORKS * passed_s
        self.own_idle_s = 0.0 if spent.pop(own, 0.0) > works_s else self.own_idle_s + passed_s
        self.children_idle_s = 0.0 if sum(spent.values()) > works_s else self.children_idle_s + passed_s
        self._cpu = used

    def _look_at_main_thread(self, processes: Sequence[Process], passed_s: float) -> None:
        """A thread that stands still in one wait is not woken. One that goes from collective to collective is, though its stack may look the same each time."""
        now = main_thread(processes[0].pid) if processes else None
        if now is not None and self._main is not None:
            runs = now[0] - self._main[0] > _RUNS * passed_s or now[1] - self._main[1] > _WOKEN * passed_s
            self.main_idle_s = 0.0 if runs else self.main_idle_s + passed_s
            self.main_busy_s = self.main_busy_s + passed_s if runs else 0.0
        self._main = now

    def _look_at_files(self, processes: Sequence[Process], passed_s: float) -> None:
        moved = sum(io_bytes(process.pid) for process in processes)
        busy = self._io_bytes is not None and moved - self._io_bytes > _MOVES_BYTES * passed_s
        self.io_idle_s = 0.0 if busy or self._io_bytes is None else self.io_idle_s + passed_s
        self._io_bytes = moved

    def _look_at_stack(self, sample: Callable[[], str], pending: Pending, passed_s: float) -> None:
        self.stack_s = self.stack_s + passed_s if self.stack_s is not None else None
        self.sampled_s = self.sampled_s + passed_s if self.sampled_s is not None else None
        self.pending_s = self.pending_s + passed_s if self.pending_s is not None else None
        self._asked_s = self._asked_s + passed_s if self._asked_s is not None else None
        if self.quiet_s < self._next_sample_s:
            return
        text, unfinished, fresh = sample(), pending(), self._asked_s is not None and self._asked_s <= _FRESH_S
        self._asked_s = 0.0
        if fresh:
            self._take_pending(unfinished)
            self._next_sample_s = self.quiet_s + _SAMPLE_SHARE * self.quiet_s
            if text:
                self._take(place_of(text))

    def _take(self, stack: tuple[str, ...]) -> None:
        self.sampled_s = 0.0
        if stack != self._stack or self.stack_s is None:
            self.stack_s = 0.0
        self._stack, self.inside = stack, inside_of(stack)
        frames = users_frames(stack)
        if self._stable is None:
            self._stable, self._below = frames, ""
        same = sum(1 for _ in _common(self._stable, frames))
        below = frames[same].function if same < len(frames) else ""
        if same < len(self._stable):
            was = self._stable[same].function
            self._below = below if below == was else ""
        elif self._below != below:
            self._below = ""
        self._stable = self._stable[:same]
        shown = [*self._stable, *(frames[same : same + 1] if self._below else ())]
        self._shown = shown[-1] if shown else None

    def _take_pending(self, unfinished: frozenset[tuple[str, int]]) -> None:
        if not unfinished:
            self.pending_s = None
        elif unfinished != self._pending:
            self.pending_s = 0.0
        self._pending = unfinished

    def _place(self) -> str:
        if self._stable is None:
            return ""
        calls = [f"{Path(frame.file).name}:{frame.function}:{frame.line}" for frame in self._stable]
        if self._below and self._shown is not None:
            calls.append(f"{Path(self._shown.file).name}:{self._below}")
        return " > ".join(calls)

    def _where(self) -> str:
        if self._shown is None:
            return ""
        at = f"{Path(self._shown.file).name}:{self._shown.line}"
        return at if self._shown.function == "<module>" else f"`{self._shown.function}`, {at}"


class Sources:
    """Lines of the user's files. A thread reads them: on a mount that is gone the agent itself must not wait."""

    def __init__(self) -> None:
        self._lines: dict[str, Sequence[str]] = {}

    def line(self, file: str, number: int) -> str:
        """Returns the line; empty as long as the file is being read, and where it cannot be."""
        if file not in self._lines:
            self._lines[file] = ()
            threading.Thread(target=self._read, args=(file,), name="source", daemon=True).start()
        lines = self._lines[file]
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def _read(self, file: str) -> None:
        with contextlib.suppress(OSError):
            self._lines[file] = Path(file).read_text(errors="replace").splitlines()


_sources = Sources()


def inside_of(stack: tuple[str, ...], line_of: Callable[[str, int], str] = _sources.line) -> str:
    """Says what the main thread is in. `stack` is innermost first, each frame as file:function:line."""
    frames = [_frame(text) for text in stack]
    newest = list(itertools.takewhile(lambda frame: not _is_users(frame), frames[:_INNERMOST]))  # A hook that torch calls stands above it, and is the user's.
    if any(_is_collective(frame) for frame in newest) and not any(frame.function in _PACKS for frame in newest):
        return COLLECTIVE
    if any("/holdfast/trainer/feed.py" in frame.file or "/torch/utils/data/" in frame.file for frame in frames):
        return DATA
    if any(frame.function == "_engine_run_backward" for frame in newest) or (frames and _waits_for_work(frames[0], line_of)):
        return BEGUN
    return ELSEWHERE if stack else ""


def users_frames(stack: tuple[str, ...]) -> tuple[Frame, ...]:
    """Returns the frames of the user's own files, outermost first."""
    return tuple(frame for frame in map(_frame, reversed(stack)) if _is_users(frame))


def main_thread(pid: int) -> tuple[float, int] | None:
    """Returns the processor time of a process's main thread, and how often it gave the processor back by itself; None where that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    except OSError:
        return None
    woken = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:")), 0)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S, woken


def io_bytes(pid: int) -> int:
    """Returns what a process has read and written so far, also from caches, sockets and pipes; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file.read().splitlines()[:2])
    except (OSError, ValueError, IndexError):
        return 0


def what_it_does(pid: int) -> str:
    """Says which system call the main thread waits in; empty where that is not known."""
    machine = platform.machine()
    try:
        first, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
        number = int(first)
        if number == _READ.get(machine):
            return f"reads {_opened(pid, int(arguments[0], 16))}"
    except (OSError, ValueError, IndexError):  # Gone, running, or another user's.
        return ""
    return next((said for said, numbers in _SYSTEM_CALLS.get(machine, {}).items() if number in numbers), "")


def _opened(pid: int, fd: int) -> str:
    target = ""
    with contextlib.suppress(OSError):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    kind = target.partition(":[")[0]
    return {"pipe": "a pipe", "socket": "a socket", "": "a file"}.get(kind, target)


def _is_users(frame: Frame) -> bool:
    return not frame.file.startswith("<") and not any(part in frame.file for part in _LIBRARIES)


def _is_collective(frame: Frame) -> bool:
    if frame.file.endswith("/torch/nn/parallel/distributed.py"):
        return "broadcast_coalesced" in frame.function  # The buffers of a model in DistributedDataParallel.
    return "/torch/distributed/" in frame.file and not any(part in frame.file for part in _NO_COLLECTIVE)


def _waits_for_work(frame: Frame, line_of: Callable[[str, int], str]) -> bool:
    """Whether the user's line is a `work.wait()`, which is C++ and has no frame of its own. What else is called `wait` in Python has one."""
    return _is_users(frame) and ".wait(" in line_of(frame.file, int(frame.line))


def _frame(text: str) -> Frame:
    file, function, line = text.rsplit(":", 2)
    return Frame(file, function, line)


def _common(one: Sequence[Frame], other: Sequence[Frame]) -> Sequence[Frame]:
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:same]
