"""The last lines of each writer, folded: where a log ends is often all it says."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from holdfast.diagnose.reading.line import Line
from holdfast.diagnose.reading.templates import Templates, masked
from holdfast.domain.log_event import LogLine

LINES_READ: Final = 400  # Of the end of a file.
UNUSUAL_LINES: Final = 40  # At the very end: whether they are like those before is asked.
_PER_WRITER: Final = 30
_ALL_MAX: Final = 3000
_DONE: Final = re.compile(
    r"\b(?:training|fine-?tuning|pre-?training|train|run|job|experiment)\b[^.]{0,40}?\b(?:is |has |was |been |run )*(?:completed?|finished|done|succeeded"
    r"|ended successfully)\b"
    r"|\b(?:finished|completed|done with|successfully completed) (?:the )?(?:training|run|all|\d+ (?:epochs|steps))"
    r"|Trainer\.fit` stopped: `max_|\btrain_runtime\b|\ball (?:epochs|steps) (?:done|completed|finished)|\bexit(?:ed with)? (?:code|status)[: ]+0\b"
    r"|\breached max(?:imum)? (?:steps|epochs|iterations)"
    r"|^\W*(?:all )?done\W*$|exiting program at iteration|COMPLETED ",
    re.IGNORECASE,
)
_NOT_DONE: Final = re.compile(r"\bnot (?:yet |been |have |be )*(?:complete|finish|done|succe)|\bfail|\berror|\bepoch \d+ (?:done|completed|finished)|\bstep\b"
    r"|will be|before|unless|when ", re.IGNORECASE)
_DONE_LINES: Final = 25


@dataclass(slots=True)
class Tail:
    lines: list[LogLine]
    finished_line: int  # Where it says that it is done; 0 where it does not.
    rare: list[LogLine]


def of_lines(lines: list[Line], path: str, usual: Templates) -> Tail:
    """The last lines of a file, by writer; of several states of one bar the last. Rare are those at the very end that are like none before."""
    by_writer: dict[tuple[int | None, str, str], list[LogLine]] = {}
    for line in lines:
        if not line.shown.strip():
            continue
        kept = by_writer.setdefault(line.writer, [])
        one = LogLine(text=line.shown.rstrip(), path=path, line=line.number, rank=line.about, node=line.node, at_s=line.at_s)
        if kept and kept[-1].line == one.line and "\n" not in one.text:
            kept[-1] = one
        elif kept and masked(kept[-1].text) == masked(one.text):
            kept[-1] = replace(one, times=kept[-1].times + 1)
        else:
            kept.append(one)
    written = [line for line in lines if line.text.strip()]
    finished_line = max((line.number for line in written[-_DONE_LINES:] if _DONE.search(line.text) and not _NOT_DONE.search(line.text)), default=0)
    found = [one for kept in by_writer.values() for one in kept[-_PER_WRITER:]]
    rare = [
        LogLine(text=line.shown.rstrip(), path=path, line=line.number, rank=line.about, node=line.node, at_s=line.at_s)
        for line in written[-UNUSUAL_LINES:]
        if len(usual) and usual.find(line.text) is None
    ]
    return Tail(sorted(found, key=lambda one: one.line), finished_line, rare)


class Tails:
    """Those of all files: with many of them, fewer lines of each."""

    def __init__(self) -> None:
        self._by_path: dict[str, list[LogLine]] = {}
        self._count = 0

    def add(self, path: str, lines: list[LogLine]) -> None:
        each = max(2, _ALL_MAX // (len(self._by_path) + 1))
        if len(self._by_path) >= _ALL_MAX:
            return
        self._by_path[path] = lines[-each:]
        self._count += len(self._by_path[path])
        if self._count > 2 * _ALL_MAX:
            self._by_path = {path: lines[-each:] for path, lines in self._by_path.items()}
            self._count = sum(map(len, self._by_path.values()))

    def all(self) -> list[LogLine]:
        each = max(1, _ALL_MAX // max(1, len(self._by_path)))
        return [line for lines in self._by_path.values() for line in lines[-each:]]
