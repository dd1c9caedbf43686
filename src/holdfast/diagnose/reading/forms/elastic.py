"""torchrun's table of failures: who failed how, and which of them was seen first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.diagnose.reading.forms.found import Answer, Found, single
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm

_OPEN: Final = re.compile(r"^\S.{0,200}? FAILED\s*$|Root Cause \(first observed failure\)")
_FIELD: Final = re.compile(r"\s*(?P<name>time|host|rank|exitcode|error_file|traceback|msg|message)\s*: ?(?P<value>.*)")
_PART: Final = re.compile(r"\s*[=-]{5,}\s*$|Failures:|\s*<NO_OTHER_FAILURES>|Root Cause|\[\d+\]:|\s*$|  ")
_RANK: Final = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_LINES_MAX: Final = 4000  # 512 ranks, seven lines each.


@dataclass(slots=True)
class _Child:
    host: str = ""
    rank: int | None = None
    code: int | None = None
    said: str = ""


def opens(line: Line) -> Elastic | None:
    if "failed" not in line.words and "Root Cause" not in line.text:
        return None
    return Elastic(line) if not line.timed and _OPEN.match(line.text) else None


class Elastic:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._last_line = line.number
        self._text = [line.shown]
        self._children: list[_Child] = []
        self._root: _Child | None = None
        self._in_root = "Root Cause" in line.text
        self._in_traceback = False
        self._closed = False

    def feed(self, line: Line) -> Answer:
        text = line.text
        field = _FIELD.match(text)
        if self._closed or len(self._text) > _LINES_MAX or (field is None and not _PART.match(text)):
            return Answer.ENDED
        self._closed = bool(self._children) and text.startswith("=====")  # The rule below the table: what comes next is another launcher's.
        if "Root Cause" in text:
            self._in_root = True
        if re.match(r"\s*\[\d+\]:", text):
            self._children.append(_Child())
            self._root = self._children[-1] if self._in_root and self._root is None else self._root
        elif field is not None and self._children:
            self._take(field["name"], field["value"].strip())
        elif self._in_traceback and text.strip() and self._children and not re.match(r"\s*[=-]{5,}", text):
            self._children[-1].said = text.strip()  # Its last line is the exception.
        self._text.append(line.text.rstrip())
        self._last_line = line.number
        return Answer.TAKEN

    def finish(self) -> Found:
        if not self._children:
            return single(LogForm.LINE, "", self._line.text.strip(), self._line)
        root = self._root or self._children[0]
        who = f"rank {root.rank}" if root.rank is not None else "one process"
        message = f"{self._line.text.strip()}: first observed failure: {who}{f' on {root.host}' if root.host else ''}, exitcode {root.code}. {root.said}"
        return Found(
            form=LogForm.SCHEDULER, error="ChildFailedError", message=message, line=self._line, last_line=self._last_line, text=self._text,
            exit_codes=[(child.rank, child.code) for child in self._children if child.code is not None], rank=root.rank, node=root.host,
        )  # fmt: skip

    def _take(self, name: str, value: str) -> None:
        child = self._children[-1]
        self._in_traceback = name == "traceback"
        if name == "host":
            child.host = value[:80]
        elif name == "rank" and (found := _RANK.match(value)) is not None:
            child.rank = int(found[1][:6])
        elif name == "exitcode" and (code := re.match(r"-?\d{1,3}", value)) is not None:
            child.code = int(code[0])
        elif name in ("traceback", "msg", "message"):
            child.said = value
