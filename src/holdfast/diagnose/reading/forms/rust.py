"""Panics of Rust: tokenizers, safetensors, data loaders and stores are written in it."""

from __future__ import annotations

import re
from typing import Final

from holdfast.diagnose.reading.forms.found import Answer, Found
from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogForm, LogFrame

_PANIC: Final = re.compile(r"thread '(?P<thread>[^']*)'(?: \(\d+\))? panicked at (?:'(?P<message>.*)', )?(?P<path>[^\s:']+):(?P<line>\d+)(?::\d+)?:?")
_PART: Final = re.compile(r"\s*\d+: |\s+at |note: |stack backtrace:|\s+\S|left: |right: ")


def opens(line: Line) -> Rust | None:
    found = _PANIC.search(line.text) if "panicked" in line.words else None
    return Rust(line, found) if found is not None else None


class Rust:
    def __init__(self, line: Line, found: re.Match[str]) -> None:
        self._line = line
        self._message = found["message"] or ""
        self._frames = [LogFrame(path=found["path"][-300:], line=int(found["line"][:9]), function="")]
        self._text = [line.shown]
        self._last_line = line.number

    def feed(self, line: Line) -> Answer:
        text = line.text
        if not self._message and text.strip():
            self._message = text.strip()  # Since Rust 1.73 the message has a line of its own.
        elif not _PART.match(text) or len(self._text) > 200 or line.timed:
            return Answer.ENDED
        self._text.append(text.rstrip())
        self._last_line = line.number
        return Answer.TAKEN

    def finish(self) -> Found:
        return Found(form=LogForm.RUST, error="panic", message=self._message, line=self._line, last_line=self._last_line, text=self._text, frames=self._frames)
