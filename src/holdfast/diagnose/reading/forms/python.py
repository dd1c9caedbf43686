"""Tracebacks of Python: chained, grouped, nested in another's message, boxed by rich, cut at either end.

Whatever is nested is the cause of what it is nested in: a loader worker's own exception, a task's, a spawned process's. It names the error, and what was raised
from it stands in `under`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from holdfast.diagnose.reading.forms.found import Answer, Found
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm, LogFrame

_HEADER: Final = re.compile(r"(?:Original )?Traceback \(most recent call last\)")
_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_RICH_FRAME: Final = re.compile(r"(?P<path>[\w./<>-]+\.\w+):(?P<line>\d+) in (?P<function>\S+)")
EXCEPTION: Final = re.compile(
    r"(?P<class>(?:[A-Za-z_]\w*\.)*[A-Z_]\w*?(?:Error|Exception|Interrupt|Exit|Iteration|Warning|Group|Timeout|Expired|Failure|Fault|Killed|Unavailable|Empty"
    r"|Full)\w*)"
    r"(?:\((?P<of>[\w.]+)\))?(?:: ?(?P<message>.*)|)$"
)
_ANY_EXCEPTION: Final = re.compile(r"(?P<class>(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|[A-Z]\w*)(?:\((?P<of>[\w.]+)\))?(?:: (?P<message>.*)|:|)$")
_CHAIN: Final = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_MORE: Final = re.compile(
    r"\s+\S|nccl\w+(?:Error|Usage|Argument|Progress)\b|Last error|CUDA kernel errors|For debugging consider|Compile with|Device-side assert"
    r"|Exception raised from"
    r"|frame #\d|Search for|\(Triggered internally|-- Process \d+ terminated|--------|\"\"\"|Please |Check |See |The |If |To |This |Make sure|Did you|You |Note"
    r"|Hint|Try |Available|Expected|Got|  "
    r"|[-*•] |\[\w+:\d+\]|Caught |Parameter|Tensor|Input|Output|Supported|where |and |or |\)|\]"
)
_RULE: Final = re.compile(r"[=*]{5,}\s*$")  # Somebody's table starts.
_IGNORED: Final = "Exception ignored in"  # The interpreter says so of what is raised while it cleans up; the traceback follows.
_SPAWNED: Final = re.compile(r"-- Process (\d+) terminated with the following error")
_NESTED_NEXT: Final = re.compile(r'terminated with the following error|"""$|error:$|traceback:$|Original Traceback|RemoteTraceback|^\s*$')
_GROUP_BAR: Final = re.compile(r"\s*\|(?: |$)")
_GROUP_PART: Final = re.compile(r"\s*\+-+(?:\+-+)? ?(\d+|\.\.\.)? ?-*")
_BOX: Final = "╭╮╰╯─│┃┏┓┗┛━┌┐└┘ "
_PROGRESS: Final = re.compile(r"\bloss\b['\"]?\s*[:=]?\s*[\d.]|%\||^\s*(?:iteration|step|epoch)\b.*\d", re.IGNORECASE)
_SOURCE_LINES_MAX: Final = 8  # Between two frames: the source, what marks the place in it, how often it repeats.
_LINES_MAX: Final = 600
_STRANGERS_MAX: Final = 6
_MORE_LINES_MAX: Final = 40


def opens(line: Line) -> Python | None:
    """A traceback, or what is left of one whose start was cut off."""
    text = line.text
    if ("Traceback (most" in text and _HEADER.search(text)) or ('File "' in text and not line.timed and _FRAME.match(text)) or text.startswith(_IGNORED):
        return Python(line)
    return None


class _Raised(NamedTuple):
    """An exception, as its own line tells it."""

    error: str
    message: str
    line: int


class Python:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._last_line = line.number
        self._text: list[str] = []
        self._frames: list[LogFrame] = []
        self._error = ""
        self._message: list[str] = []
        self._error_line = 0
        self._under: list[_Raised] = []
        self._nested: list[_Raised] = []  # The outer ones, while what is nested in them is read.
        self._in_message = False
        self._in_group = False
        self._ignored = line.text.startswith(_IGNORED)
        self._logged_as_warning = line.timed and line.level in ("warning", "debug")  # Whoever logs it has caught it. Without a time it may be all of stderr.
        self._blanks = 0
        self._strangers = 0
        self._since_frame = 0
        self._more = 0
        self._count = 0
        self._rank: int | None = None
        self.feed(line)

    def feed(self, line: Line) -> Answer:
        self._count += 1
        if self._count > _LINES_MAX:
            return Answer.ENDED
        text = self._unboxed(line.text)
        answer = self._after(line, text) if self._in_message else self._within(line, text)
        if answer is Answer.TAKEN:
            if self._blanks == 0 or line.text.strip():
                self._text.append(line.text.rstrip())
            self._last_line = line.number
        return answer

    def finish(self) -> Found:
        named, under = self._named()
        return Found(
            form=LogForm.PYTHON, error=named.error, message=named.message, line=self._line, last_line=self._last_line, text=self._text, frames=self._frames,
            said_line=named.line, under=[_said(one) for one in under], under_lines=[one.line for one in under],
            rank=self._rank, warning=self._ignored or self._logged_as_warning or named.error.rpartition(".")[2].endswith("Warning"),
        )  # fmt: skip

    def _named(self) -> tuple[_Raised, list[_Raised]]:
        """What is nested innermost names the error, with the words around it; of a group the first."""
        last = _Raised(self._error, " ".join(part for part in self._message if part), self._error_line)
        told = [one for one in (*self._nested, last) if one.error]
        if not told:
            return _Raised("", "", 0), self._under
        if self._in_group and len(told) > 1:
            return told[1], [*self._under, *told[2:], told[0]]
        inner = told[-1]
        if len(told) == 1:
            return inner, self._under
        around = " ".join(outer.message for outer in told[:-1] if outer.message and outer.message != inner.message)
        return inner._replace(message=f"{around} {inner.message}".strip()), [inner, *self._under]

    def _within(self, line: Line, text: str) -> Answer:
        """Between the header and the exception's own line."""
        if self._count == 1 and self._ignored:
            return Answer.TAKEN
        if _HEADER.search(text):
            if self._frames and not self._expects_header():
                return Answer.ENDED
            return Answer.TAKEN  # The header itself, or that of another rank that says the same at the same time.
        if (found := _FRAME.match(text) or _RICH_FRAME.match(text.strip())) is not None:
            frame = LogFrame(path=found["path"][-300:], line=int(found["line"][:9]), function=(found["function"] or "")[:120].strip())
            if not self._frames or self._frames[-1] != frame:
                self._frames.append(frame)
            self._strangers = self._since_frame = 0
            return Answer.TAKEN
        self._since_frame += 1
        if not text.strip() or self._in_box(line.text) or (text[0] in " \t" and self._since_frame <= _SOURCE_LINES_MAX and not _PROGRESS.search(text)):
            return Answer.TAKEN
        found = EXCEPTION.match(text) or (_ANY_EXCEPTION.match(text) if self._frames and not line.timed else None)
        if found is not None and self._count > 1:
            self._error = found["of"] or _once(found["class"])
            self._message = [(found["message"] or "").strip()]
            self._error_line = line.number
            self._in_message, self._blanks, self._more = True, 0, 0
            return Answer.TAKEN
        if self._in_group and _GROUP_PART.match(text):
            return Answer.TAKEN
        self._strangers += 1
        return Answer.PASSED if self._strangers <= _STRANGERS_MAX else Answer.ENDED

    def _after(self, line: Line, text: str) -> Answer:
        """After the exception's own line: more of its message, what it is chained to, or what is nested in it."""
        if _CHAIN.search(text):
            self._under.append(_Raised(self._error, self._message[0] if self._message else "", self._error_line))
            self._error, self._message, self._in_message, self._blanks = "", [], False, 0
            return Answer.TAKEN
        if self._in_group and (found := _GROUP_PART.match(text)):
            if found[1]:
                self._nest()
            return Answer.TAKEN
        if _HEADER.search(text):
            if "Original" in text or self._expects_header():
                self._nest()
                return Answer.TAKEN
            return Answer.ENDED
        if _FRAME.match(text):
            self._nest()
            return self._within(line, text)
        if not text.strip():
            self._blanks += 1
            return Answer.TAKEN if self._blanks <= 2 else Answer.ENDED
        if line.timed or line.level or _PROGRESS.search(text) or self._more >= _MORE_LINES_MAX:
            return Answer.ENDED
        if _RULE.match(text):
            return Answer.ENDED
        previous = next((part for part in reversed(self._message) if part), "")
        begins = not previous and self._blanks <= 1
        if (_MORE.match(text) and not self._blanks) or begins or (previous.endswith(":") and self._blanks <= 1) or _SPAWNED.match(text):
            if (spawned := _SPAWNED.match(text)) is not None:
                self._rank = int(spawned[1][:6])
            self._more += 1
            self._blanks = 0
            self._message.append(text.strip())
            return Answer.TAKEN
        return Answer.ENDED

    def _nest(self) -> None:
        self._nested.append(_Raised(self._error, " ".join(part for part in self._message[:3] if part), self._error_line))
        self._error, self._message, self._in_message, self._blanks = "", [], False, 0

    def _expects_header(self) -> bool:
        """Does what was read last announce a traceback inside?"""
        previous = next((part for part in reversed(self._text) if part.strip()), "")
        return bool(_NESTED_NEXT.search(previous.strip()) or _CHAIN.search(previous) or _GROUP_PART.match(previous))

    def _unboxed(self, text: str) -> str:
        if "Exception Group Traceback" in text:
            self._in_group = True
        if self._in_group and (bar := _GROUP_BAR.match(text)):
            return text[bar.end() :]
        if self._in_group and text.lstrip().startswith("+ Exception Group"):
            return text.lstrip()[2:]
        if text[:1] in "╭╰│┃┏┗":
            return text.strip(_BOX)
        return text

    def _in_box(self, text: str) -> bool:
        return text[:1] in "╭╰│┃┏┗"


def _once(name: str) -> str:
    """Two ranks that print the same at the same time write the name twice in a row."""
    half = name[: len(name) // 2]
    return half if half and name == half * 2 else name


def _said(one: _Raised) -> str:
    return f"{one.error}: {one.message}" if one.message else one.error
