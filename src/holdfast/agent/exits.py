"""How a worker ended, from everything that is known of it.

    classify(evidence) -> Exit     pure: values in, a value out, with one sentence for people

The evidence is what the warm parent told, and two readings of the counters in which the kernel records that it killed somebody for memory: one from
before (`read_memory_kills`), one from after (`read_memory_kills_again`). A SIGKILL alone does not say who sent it. Where a worker has a control group of
its own the count is of its own processes and of nobody else, and the limit that was met is named.

Is wrong    when workers share a group, and somebody sends SIGKILL to one in the same moment in which the kernel kills another process for memory; the sentence
            then says what was counted, so that it can be judged.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.domain.exit import Exit, ExitKind
from holdfast.observe.cgroup import Place

_OUTERMOST_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO in include/linux/proc_ns.h.
_MESSAGE_CHARS_MAX: Final = 2000
_ALLOCATION_FAILED: Final = re.compile(r"^MemoryError\b|[Cc]an(?:'t|not) allocate memory")  # Python's, and torch's DefaultCPUAllocator's.
_SIGKILL_CODES: Final = (128 + signal.SIGKILL, 256 - signal.SIGKILL)  # What a shell, and Python's own subprocess users, make of a SIGKILL.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit of the job's own, and where it is counted how often it was met."""

    what: str  # "memory" or "processes".
    words: str
    file: str
    word: str = ""  # Before the number; empty where the file holds nothing else.
    at: int | None = None  # The file holds not a count but the most there ever was, and at this the limit was met.
    fresh: bool = False  # It is told for the worker alone, and began at nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Where the kernel counts what it did to a worker."""

    kills: str = ""  # The file of its control group; empty where there is none to be read.
    fresh: bool = False  # The group was made for this worker alone: it began at nothing.
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKills:
    """How many processes the kernel has killed for memory so far. None: not to be read here."""

    machine: int | None = None
    cgroup: int | None = None
    counter: str = ""  # The file the cgroup's count is in.
    limits: tuple[Limit, ...] = ()
    met: tuple[int | None, ...] = ()  # How often each of them was.


NOTHING_COUNTED: Final = MemoryKills()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one ended process."""

    rank: int
    pid: int
    code: int | None = None
    signal: int | None = None  # Neither code nor signal: nobody saw the end.
    core: bool = False
    at_ns: int = 0
    tail: str = ""
    error: str | None = None  # What the worker left in its error file: our note, or that of torch's @record.
    kills_before: MemoryKills = NOTHING_COUNTED
    kills_after: MemoryKills = NOTHING_COUNTED
    kernel_log: str = ""  # The kernel's line about this process, where the log may be read.
    step: int = -1
    phase: str = ""
    stopped_by_us: bool = False
    micro_batch: int = 0
    loader_workers: int = 0
    data_limit: str = ""  # What a single process may have, in words, where that is how memory is limited.


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A Python exception that ended a process."""

    type: str
    message: str
    frame: str

    @property
    def fingerprint(self) -> str:
        """Type and place. Not the message: it has addresses and numbers in it that differ each time."""
        return f"{self.type}@{self.frame}" if self.frame else f"{self.type}: {_without_numbers(self.message)}"


def classify(evidence: Evidence) -> Exit:
    """Name the way a worker ended: the most telling evidence wins."""
    raised = _raised(evidence) if evidence.code else None
    kind, because, fingerprint = _judge(evidence, raised)
    return Exit(
        rank=evidence.rank, pid=evidence.pid, kind=kind, because=because, code=evidence.code, signal=evidence.signal, at_ns=evidence.at_ns,
        exception=raised.type if raised else "", message=raised.message if raised else "", frame=raised.frame if raised else "",
        fingerprint=fingerprint, tail=evidence.tail, step=evidence.step, phase=evidence.phase, stopped_by_us=evidence.stopped_by_us,
        micro_batch=evidence.micro_batch, loader_workers=evidence.loader_workers, limit=_option(evidence) if kind is ExitKind.OUT_OF_MEMORY else "",
    )  # fmt: skip


def _judge(evidence: Evidence, raised: Raised | None) -> tuple[ExitKind, str, str]:
    rank = f"rank {evidence.rank}"
    if evidence.code is None and evidence.signal is None:
        return ExitKind.VANISHED, f"{rank} is gone and nobody saw how: its parent died first", "vanished"
    if evidence.code == 0:
        return ExitKind.FINISHED, f"{rank} finished", ""
    memory = _memory_reason(evidence, raised)
    if memory:
        return ExitKind.OUT_OF_MEMORY, f"{rank} ran out of memory: {memory}", "out_of_memory"
    refused = _met(evidence, "processes")
    beside = f"; a process or thread was refused at the limit of {refused}" if refused and not evidence.stopped_by_us else ""
    if raised is not None:
        return ExitKind.EXCEPTION, f"{rank} raised {_first_line(raised)}{f', at {raised.frame}' if raised.frame else ''}{beside}", raised.fingerprint
    if evidence.signal is not None:
        return ExitKind.SIGNAL, f"{rank} {_signal_sentence(evidence)}{beside}", f"signal:{signal_name(evidence.signal)}"
    return ExitKind.CODE, f"{rank} {_code_sentence(evidence)}{beside}", f"code:{evidence.code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# ------------------------------------------------------------------------------------------------------------ memory


def _memory_reason(evidence: Evidence, raised: Raised | None) -> str:
    """Why we say that it was memory; empty when nothing says so."""
    wrote = f"the kernel wrote: {evidence.kernel_log}" if evidence.kernel_log else ""
    return "; ".join(filter(None, (_counted_reason(evidence, raised), wrote)))


def _counted_reason(evidence: Evidence, raised: Raised | None) -> str:
    if evidence.data_limit and raised is not None and _ALLOCATION_FAILED.search(f"{raised.type}: {raised.message}"):
        return f"it could not have more than {evidence.data_limit}"
    if not _killed(evidence, raised) or evidence.stopped_by_us:
        return ""
    before, after = evidence.kills_before, evidence.kills_after
    in_cgroup = _more(before.cgroup, after.cgroup) if before.counter == after.counter else 0
    limit = _met(evidence, "memory")
    if in_cgroup and limit:
        return f"the kernel killed it at the limit of {limit}"
    if in_cgroup:
        return f"it was killed, and the kernel counts {in_cgroup} more killed for memory in its cgroup ({after.counter})"
    if before.cgroup is not None and after.cgroup is not None:
        return ""  # A cgroup counts its own dead whoever was short of memory; the machine's count is of others, and this process may have run for days.
    on_machine = _more(before.machine, after.machine)
    return f"it was killed, and the kernel counts {on_machine} more killed on this machine because memory was short" if on_machine else ""


def _met(evidence: Evidence, what: str) -> str:
    """The limit that was met meanwhile, in words: the narrowest, which comes first."""
    before, after = evidence.kills_before, evidence.kills_after
    if before.limits != after.limits:
        return ""
    met = (limit.words for limit, old, new in zip(after.limits, before.met, after.met, strict=True) if limit.what == what and _more(old, new))
    return next(met, "")


def _option(evidence: Evidence) -> str:
    """Which limit of memory was met, as it was asked for."""
    found = re.search(r"\((--[\w-]+)", evidence.data_limit or _met(evidence, "memory"))
    return found[1] if found else ""


def _killed(evidence: Evidence, raised: Raised | None) -> bool:
    """By SIGKILL, itself or a process it depends on: a data loader's worker, or the program a shell script runs."""
    if evidence.signal == signal.SIGKILL or evidence.code in _SIGKILL_CODES:
        return True
    return raised is not None and re.search(r"killed by signal: Killed|SIGKILL|terminated abruptly", raised.message) is not None


def _more(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0


def read_memory_kills(counted: Counted) -> MemoryKills:
    """The counters before a worker runs; of a group that is its own also later, since that began at nothing."""
    now = read_memory_kills_again(MemoryKills(counter=counted.kills, limits=counted.limits))
    if not counted.fresh or now.cgroup is None:
        return now
    return replace(now, cgroup=0, met=tuple(0 if limit.fresh else met for limit, met in zip(now.limits, now.met, strict=True)))


def read_memory_kills_again(before: MemoryKills) -> MemoryKills:
    """The same counters later. The process need not live any more: a dead one is shown in no cgroup, so the files found before are read."""
    return replace(
        before, machine=_count(Path("/proc/vmstat")), cgroup=_count(Path(before.counter)) if before.counter else None,
        met=tuple(_met_so_far(limit) for limit in before.limits),
    )  # fmt: skip


def _met_so_far(limit: Limit) -> int | None:
    number = _count(Path(limit.file), limit.word)
    return number if number is None or limit.at is None else int(number >= limit.at)


def counted_in(place: Place) -> Counted:
    """A memory group that was there before us: version 1 counts in memory.oom_control, version 2 in memory.events."""
    return Counted(kills=str(place.directory / ("memory.events" if place.version == 2 else "memory.oom_control")))


def _count(path: Path, word: str = "oom_kill") -> int | None:
    found = re.search(rf"^{word} ?(\d+)$", _read(path), re.MULTILINE)
    return int(found[1]) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def read_kernel_log(pid: int, since_ns: int) -> str:
    """The kernel's line that says it killed this process for memory. Empty without one, or where the log may not be read.

    `since_ns` is when the process started (CLOCK_MONOTONIC): an older line is about another one of the same number.
    """
    # The numbers in the log are those of the outermost process namespace: in a container they would name other processes.
    if os.readlink("/proc/self/ns/pid") != _OUTERMOST_NAMESPACE:
        return ""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    records = []
    try:
        while True:
            with contextlib.suppress(BrokenPipeError):  # A record overwritten under our hands; the next one follows.
                records.append(os.read(fd, 8192).decode(errors="replace"))
    except OSError:
        pass  # EAGAIN: that was the last one. EPERM: not for us.
    finally:
        os.close(fd)
    return kernel_line(records, pid, since_ns)


def kernel_line(records: Iterable[str], pid: int, since_ns: int) -> str:
    """The newest record about killing this process for memory. A record is "priority,sequence,microseconds,flags;text"."""
    pattern = re.compile(rf"out of memory.*killed process {pid}\b", re.IGNORECASE)
    found = ""
    for record in records:
        head, _, text = record.partition(";")
        at_us = head.split(",")[2:3]
        # The two clocks differ by a little.
        if pattern.search(text) and at_us and at_us[0].isdigit() and int(at_us[0]) * 1000 >= since_ns - 10**9:
            found = text.partition("\n")[0]
    return found


# -------------------------------------------------------------------------------------------------------- exceptions

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_NEVER_PARSED = re.compile(r"^(?P<type>SyntaxError|IndentationError|TabError): (?P<message>.*)$")
_NOT_THE_USERS = re.compile(r"^<frozen|/(site|dist)-packages/|/lib(64)?/python3[^/]*/|/holdfast/(trainer|checkpoint)/")
_HEADER = "Traceback (most recent call last):"


def _raised(evidence: Evidence) -> Raised | None:
    """From the note the worker left, otherwise from what it printed last."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        if evidence.error:
            return _from_note(json.loads(evidence.error))
    return _from_lines(evidence.tail.splitlines())


def _speakable(text: str) -> str:
    """Half a character, as a file name that is not UTF-8 brings it into a message, is valid in JSON and can be sent to nobody."""
    return text.encode(errors="replace").decode()


def _from_note(note: dict[str, Any]) -> Raised | None:
    if "type" in note:
        lines = [str(line) for line in note.get("traceback", ())]
        return Raised(type=str(note["type"]), message=_speakable(str(note.get("message", ""))[:_MESSAGE_CHARS_MAX]), frame=_speakable(user_frame(lines)))
    # What torch.distributed.elastic's @record writes.
    message = note["message"]
    if isinstance(message, str):
        return Raised(type="Exception", message=_speakable(message[:_MESSAGE_CHARS_MAX]), frame="")
    kind, _, text = str(message["message"]).partition(": ")
    frame = user_frame(str(message["extraInfo"]["py_callstack"]).splitlines())
    return Raised(type=kind, message=_speakable(text[:_MESSAGE_CHARS_MAX]), frame=_speakable(frame))


def _from_lines(lines: list[str]) -> Raised | None:
    """The last traceback in a log."""
    starts = [number for number, line in enumerate(lines) if line.rstrip().endswith(_HEADER)]
    if not starts:
        syntax = [(number, found) for number, line in enumerate(lines) if (found := _NEVER_PARSED.match(line))]
        return Raised(type=syntax[-1][1]["type"], message=syntax[-1][1]["message"], frame=user_frame(lines[: syntax[-1][0]])) if syntax else None
    block = lines[starts[-1] + 1 :]
    for number, line in enumerate(block):
        found = _LAST_LINE.match(line)
        if found and number > 0:
            return Raised(type=found["type"], message=(found["message"] or "")[:_MESSAGE_CHARS_MAX], frame=user_frame(block[:number]))
    return None


def user_frame(lines: Iterable[str]) -> str:
    """The innermost frame of the user's own code, "file:function:line"; of any code when none is the user's; empty without frames."""
    frames = [found for line in lines if (found := _FRAME.match(line))]
    own = [found for found in frames if not _NOT_THE_USERS.search(found["file"])]
    if not frames:
        return ""
    innermost = (own or frames)[-1]
    # Two parts of the path: nodes may keep the same code in different places, and one name alone is ambiguous.
    file = "/".join(Path(innermost["file"]).parts[-2:]).lstrip("/")
    return f"{file}:{innermost['function'] or '<module>'}:{innermost['line']}"


# --------------------------------------------------------------------------------------------------------- sentences


def _first_line(raised: Raised) -> str:
    message = raised.message.strip().partition("\n")[0]
    return f"{raised.type}: {message}" if message else raised.type


def _signal_sentence(evidence: Evidence) -> str:
    assert evidence.signal is not None
    name = signal_name(evidence.signal)
    core = ", and left a core file" if evidence.core else ""
    if evidence.signal == signal.SIGKILL and not evidence.stopped_by_us:
        counted = evidence.kills_after.machine is not None or evidence.kills_after.cgroup is not None
        return f"was killed by {name}, and {'no counter says that memory was short' if counted else 'whether memory was short cannot be seen here'}"
    return f"was ended by {name}{core}"


def _code_sentence(evidence: Evidence) -> str:
    assert evidence.code is not None
    lines = [line.strip() for line in evidence.tail.splitlines() if line.strip()]
    said = f"; the last it printed was: {lines[-1][:200]}" if lines else " and printed nothing"
    inner = f" (a program it ran was ended by {signal_name(evidence.code - 128)})" if 128 < evidence.code < 128 + 65 else ""
    return f"exited with code {evidence.code}{inner}{said}"


def _without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text.partition("\n")[0])[:200]
