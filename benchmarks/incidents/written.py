"""Logs of failures that cannot be caused on any machine at will (a GPU that falls off the bus, a preempted node …), written from what libraries print.

`messages/*.txt` hold the messages, each with its class; this module puts them where they stand in life: behind log prefixes, after progress and warnings, as
a traceback with frames, on several ranks, before the echoes of other ranks and a launcher's clean-up, cut off, folded into JSON lines. Numbers, names and paths
are random, from the seed alone.

A message file:

    ## gpu_oom                    the class of what follows
    // where it is printed        a comment
    CUDA out of memory. Tried …   a message: lines up to the next blank one
    ![load] ValueError: no …      an exception: it becomes a traceback with frames of that family
    ?text                         a line that is left out half of the time
    %progress                     signs that training goes on
    {a|b}  {mib}  {path}          one of these; a number or name of that kind

One message is one group: whatever is made of it never stands on both sides of a split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from incidents.blanks import filled
from incidents.surroundings import before, frames, progress, settled, went_on

_MESSAGES = Path(__file__).parent / "messages"
_EXCEPTION = re.compile(r"!(?:\[(\w+)\])? ?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One log, its true class, and the group it belongs to."""

    name: str
    group: str
    cause: str
    files: tuple[tuple[str, str], ...]  # Path and text.


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    cause: str
    group: str
    text: str


def messages() -> list[Message]:
    found = []
    for file in sorted(_MESSAGES.glob("*.txt")):
        cause = ""
        for block in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            kept = []
            for line in block.splitlines():
                if line.startswith("## "):
                    cause = line[3:].strip()
                elif not line.startswith("//") and line.strip():
                    kept.append(line)
            if kept:
                assert cause, f"{file.name}: a message before the first class"
                text = "\n".join(kept)
                found.append(Message(cause=cause, group=f"{cause}-{crc32(text.encode()):08x}", text=text))
    return found


def written(seed: int, each: int) -> Iterator[Written]:
    """`each` logs of every message, all different; some more in which the same was said and training went on; and some in which nothing was said at all."""
    for message in messages():
        for copy in range(each):
            draw = random.Random(f"{seed}/{message.group}/{copy}")
            name = f"{message.group}-{copy}"
            yield Written(name=name, group=message.group, cause=message.cause, files=settled(draw, message.cause, shown(draw, message), name))
        draw = random.Random(f"{seed}/{message.group}/passed")
        if message.cause in _PASSING and draw.random() < 0.25:
            name = f"{message.group}-passed"
            yield Written(name=name, group=message.group, cause="healthy", files=((f"{name}.log", "\n".join(passed(draw, shown(draw, message))) + "\n"),))
    for number in range(10 * each):
        draw = random.Random(f"{seed}/silent/{number}")
        name, nothing = f"silent-{number}", draw.random() < 0.4
        lines = [] if nothing else before(draw, "config_error" if draw.random() < 0.5 else "hang")
        yield Written(name=name, group=name, cause="unknown" if not went_on(lines) else "healthy", files=((f"{name}.log", "\n".join(lines)),))


_PASSING = frozenset({
    "checkpoint_corrupt", "code_error", "data_corrupt", "dataloader_worker_died", "file_not_found", "gpu_oom", "import_missing", "nccl_remote_closed",
    "numeric_nan", "permission_denied", "port_in_use", "remote_service_error", "rendezvous_timeout", "storage_io", "too_many_open_files",
})  # fmt: skip
"""What programs catch, try again or go without."""
_GOES_ON = (
    "retrying in {small} seconds ({small}/5)", "attempt {small} of 5 failed, trying again", "ignored", "skipping it", "falling back to the default",
    "going on without it", "restarting the workers (restart {small} of 3)", "resumed from step {step}", "will be tried again later", "recovered",
    "using the previous one instead",
)  # fmt: skip


def passed(draw: random.Random, error: Sequence[str]) -> list[str]:
    """The same error, caught or tried again, and training after it."""
    lines = before(draw, "healthy")
    goes_on = filled(draw, draw.choice(_GOES_ON))
    if draw.random() < 0.5:
        lines += [f"{draw.choice(('WARNING', 'WARN', 'warning:', '[warn]'))} {error[-1].strip()}; {goes_on}"]
    else:
        lines += [*error, goes_on]
    lines += progress(draw, draw.randint(4, 30))
    if draw.random() < 0.5:
        lines.append(draw.choice(("Training completed.", "Done.", "Finished training, model saved.", "Best accuracy: 0.91")))
    return lines


def shown(draw: random.Random, message: Message, **given: str) -> list[str]:
    """The lines of a message with its blanks filled, an exception inside its traceback. What is `given` is not drawn."""
    lines: list[str] = []
    for line in _joined(message.text.splitlines()):
        if line.strip() == "%progress":
            lines += progress(draw, draw.randint(3, 25))
            continue
        if line.startswith("?"):
            if draw.random() < 0.5:
                continue
            line = line[1:]
        exception = _EXCEPTION.fullmatch(line) if line.startswith("!") else None
        if exception is None:
            lines += filled(draw, line, **given).split("\n")
        else:
            lines += frames(draw, exception[1] or "", filled(draw, exception[2], **given))
    return lines


def _joined(lines: Sequence[str]) -> list[str]:
    """Lines that start with a bar belong to the line before them."""
    found: list[str] = []
    for line in lines:
        if line.startswith("|") and found:
            found[-1] += "\n" + line[1:]
        else:
            found.append(line)
    return found
