"""What a reader of one form has found so far, and how it answers to the next line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol

from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogEvent, LogForm, LogFrame

TEXT_LINES_MAX: Final = 40
MESSAGE_MAX: Final = 700
FRAMES_MAX: Final = 60
_LINE_MAX: Final = 400
_UNDER_MAX: Final = 8


class Answer(Enum):
    TAKEN = auto()  # The line belongs to this error.
    PASSED = auto()  # It does not, but the error may go on: another writer's line came between.
    ENDED = auto()  # It does not, and the error is complete.


class Assembler(Protocol):
    """An error of several lines that is being read."""

    def feed(self, line: Line) -> Answer: ...
    def finish(self) -> Found | None: ...


@dataclass(slots=True)
class Found:
    """An error, complete but for what only the whole log tells: how often it came, and whether training went on."""

    form: LogForm
    error: str
    message: str
    line: Line  # Where it starts.
    last_line: int
    text: list[str]
    frames: list[LogFrame] = field(default_factory=list)
    said_line: int = 0  # Where the error itself stands; 0: on its last line.
    under: list[str] = field(default_factory=list)
    under_lines: list[int] = field(default_factory=list)
    warning: bool = False
    exit_codes: list[tuple[int | None, int]] = field(default_factory=list)
    rank: int | None = None  # Where the error itself names another one than its writer.
    node: str = ""

    def event(self, path: str) -> LogEvent:
        return LogEvent(
            form=self.form, error=self.error[:120], message=one_line(self.message), text=tuple(shortened(self.text)), path=path,
            first_line=self.line.number, last_line=max(self.last_line, self.line.number), rank=self.rank if self.rank is not None else self.line.about,
            node=self.node or self.line.node, at_s=self.line.at_s, frames=tuple(self.frames[-FRAMES_MAX:]),
            said_line=self.said_line or max(self.last_line, self.line.number), under=tuple(one_line(one) for one in self.under[:_UNDER_MAX]),
            under_lines=tuple(self.under_lines[:_UNDER_MAX]), warning=self.warning,
        )  # fmt: skip


def single(form: LogForm, error: str, message: str, line: Line, *, warning: bool = False) -> Found:
    """An error of one line."""
    return Found(form=form, error=error, message=message, line=line, last_line=line.number, text=[line.shown], warning=warning)


def one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_MAX else f"{text[:MESSAGE_MAX]} …"


def shortened(lines: list[str]) -> list[str]:
    """The first and the last lines: causes stand at either end of a long stack."""
    lines = [line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]} …" for line in lines]
    if len(lines) <= TEXT_LINES_MAX:
        return lines
    first = TEXT_LINES_MAX // 3
    last = TEXT_LINES_MAX - first - 1
    return [*lines[:first], f"… {len(lines) - first - last} lines …", *lines[-last:]]
