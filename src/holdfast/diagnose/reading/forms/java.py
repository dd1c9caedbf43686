"""Stacks of Java and Scala, as Spark, Hadoop and HDFS clients print them, with what caused them."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Answer, Found
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm, LogFrame

_OPEN: Final = re.compile(
    r"(?:Exception in thread \"[^\"]*\" |Caused by: |: )?(?P<class>(?:java|javax|jdk|sun|org|com|io|net|scala|kotlin|akka"
    r"|py4j)\.(?:[a-z][\w$]*\.)*[A-Z][\w$]*(?:Error|Exception|Throwable)\w*)(?:: (?P<message>.*))?$"
)
_FRAME: Final = re.compile(r"\s+at (?P<function>[\w.$<>/@-]+)\((?P<file>[^():]+)(?::(?P<line>\d+))?\)")
_CAUSE: Final = re.compile(r"\s*(?:Caused by|Suppressed): (?P<class>[\w.$]+)(?:: (?P<message>.*))?")
_MORE: Final = re.compile(r"\s*\.\.\. \d+ more")


def opens(line: Line) -> Java | None:
    if "Exception" not in line.text and "Error" not in line.text and "Throwable" not in line.text:
        return None
    found = _OPEN.match(line.text)
    return Java(line, found["class"], found["message"] or "") if found is not None else None


class Java:
    def __init__(self, line: Line, error: str, message: str) -> None:
        self._line = line
        self._error, self._message = error, message
        self._last_line = line.number
        self._text = [line.shown]
        self._frames: list[LogFrame] = []
        self._causes: list[str] = []
        self._cause_lines: list[int] = []

    def feed(self, line: Line) -> Answer:
        text = line.text
        if (found := _FRAME.match(text)) is not None:
            if not self._causes:
                self._frames.insert(0, LogFrame(path=found["file"], line=int((found["line"] or "0")[:9]), function=found["function"]))
        elif self._frames and (found := _CAUSE.match(text)) is not None:
            self._causes.append(f"{found['class']}: {found['message']}" if found["message"] else found["class"])
            self._cause_lines.append(line.number)
        elif not self._frames or not _MORE.match(text):
            return Answer.ENDED
        if len(self._text) > 400:
            return Answer.ENDED
        self._text.append(text.rstrip())
        self._last_line = line.number
        return Answer.TAKEN

    def finish(self) -> Found:
        return Found(
            form=LogForm.JAVA, error=self._error, message=self._message, line=self._line, last_line=self._last_line, text=self._text, frames=self._frames,
            said_line=self._line.number, under=self._causes[::-1], under_lines=self._cause_lines[::-1],
        )  # fmt: skip
