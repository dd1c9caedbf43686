"""What a log says: the places where something went wrong, and a digest of everything around them.

A digest is what is left of a log of any size after one pass in bounded memory: the errors as structure, the last lines, how the training went on, and what
was repeated. Everything that names a cause works on a digest and never sees the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LogForm(StrEnum):
    """What shape an error has in a log."""

    PYTHON = "python"  # A traceback, whole or cut.
    NATIVE = "native"  # C and C++: terminate called, a signal with its stack, a failed CHECK.
    CUDA = "cuda"
    COLLECTIVE = "collective"  # NCCL, Gloo, the store and the rendezvous.
    KERNEL = "kernel"  # A record of the kernel: Xid, out of memory, I/O error.
    SCHEDULER = "scheduler"  # Slurm, LSF, Kubernetes, a launcher: cancelled, preempted, out of time, child failed.
    TENSORFLOW = "tensorflow"  # TensorFlow's and XLA's own status lines.
    JAVA = "java"
    RUST = "rust"
    LINE = "line"  # A single line that says error, and no more structure than that.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFrame:
    path: str
    line: int  # 0 where it is not given.
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """One thing that went wrong, as one place of a log tells it."""

    form: LogForm
    error: str  # The exception's class, the code's name, the Xid: "torch.OutOfMemoryError", "ncclSystemError", "Xid 79". Empty where there is none.
    message: str  # What it says, on one line.
    text: tuple[str, ...]  # The lines themselves, cleaned, secrets masked, at most some forty.
    path: str
    first_line: int  # Counted from 1.
    last_line: int
    rank: int | None = None
    node: str = ""
    at_s: float | None = None  # Seconds since the epoch by the clock of whoever wrote it; ranks' clocks differ.
    frames: tuple[LogFrame, ...] = ()
    said_line: int = 0  # Where the error itself stands.
    under: tuple[str, ...] = ()  # The exceptions this one was raised from, innermost cause first: "ConnectionError: refused".
    under_lines: tuple[int, ...] = ()  # Where each of them stands.
    times: int = 1  # How often the same was said in this place.
    warning: bool = False  # Said as a warning, an advice or a retry: not evidence by itself.
    progress_after: int = 0  # How many signs of progress the same rank gave afterwards; long logs are thinned, so there may be more.
    fingerprint: str = ""  # The same for the same failure elsewhere: without numbers, directories, addresses and ranks.


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    text: str
    path: str
    line: int
    rank: int | None = None
    node: str = ""
    at_s: float | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """A sign that training went on: a step, an epoch, a loss."""

    path: str
    line: int
    rank: int | None = None
    at_s: float | None = None
    step: int | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDigest:
    paths: tuple[str, ...]
    lines: int
    size_bytes: int  # Of what was read.
    events: tuple[LogEvent, ...]  # In the order of their place, bounded; the first and the last of each kind are always there.
    tail: tuple[LogLine, ...]  # The last lines of each rank or file, folded.
    progress: tuple[LogProgress, ...]  # Thinned; the first, the last and any that is not finite are always there.
    rare: tuple[LogLine, ...] = ()  # Of the very last lines those that are like none before them, which often is where something new went wrong.
    said_finished: bool = False  # The log ends the way a training that is done ends.
    exit_codes: tuple[tuple[int | None, int], ...] = ()  # Rank where known, and the code (negative: a signal) that a launcher or scheduler wrote down.
    ranks: tuple[int, ...] = ()
    started_lines: tuple[tuple[str, int], ...] = ()  # Path and line where a run starts: a file in append mode holds several, and only the last counts.
    no_text_because: str = ""  # Why there is nothing to read: empty, binary, unreadable.
    notes: tuple[str, ...] = ()  # What was left out and why, a sentence each: a file that is binary, a flood that was thinned.
