"""One line of a log, cleaned: what it says, and who said it when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TEXT_MAX: Final = 2000  # Characters of a line that are kept; what is beyond says nothing more about a cause.
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[()][0-9A-Za-z]|[PX^_][^\x1b]*(?:\x1b\\)?|[@-Z\\-_=>78])?")
_BAR_END: Final = re.compile(r"%\|[^|]{0,400}\| *[\d.]+\w?/[\d.]+\w? \[[^\]]{3,400}\](?=\S)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b\u2028\u2029\ufeff]")


_WORD: Final = re.compile(r"[a-z]+")


@dataclass(slots=True)
class Line:
    text: str  # Without prefix, time and level.
    shown: str  # Without prefix, but with time and level.
    number: int
    rank: int | None = None
    node: str = ""
    stream: str = ""  # What else tells writers apart: a process number, an actor.
    at_s: float | None = None
    level: str = ""  # debug, info, warning, error, fatal; empty where none is given.
    said_rank: int | None = None  # That the text names; who wrote it may be another.
    timed: bool = False  # Starts with a time: a new record, and no continuation of the one before.
    _words: frozenset[str] | None = None

    @property
    def about(self) -> int | None:
        """The rank a line is about: of its writer, or the one it names."""
        return self.rank if self.rank is not None else self.said_rank

    @property
    def writer(self) -> tuple[int | None, str, str]:
        return (self.rank, self.node, self.stream)

    @property
    def words(self) -> frozenset[str]:
        """In small letters: whoever looks for words asks for them here first, for a set is far quicker than a pattern of many words."""
        if self._words is None:
            self._words = frozenset(_WORD.findall(self.text.lower()))
        return self._words


def cleaned(raw: bytes) -> str:
    """As a person would see it: no escape codes, backspaces done, nothing that is not UTF-8, and not without end."""
    text = raw[: 4 * TEXT_MAX].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\b" in text:
        text = _backspaced(text)
    if not text.isprintable():
        text = _CONTROL.sub("", text)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]} …"


def parts(text: str) -> list[str]:
    """A bar has no line end of its own: what others print while it is drawn stands right behind it, and is a line of theirs."""
    if "it/s" not in text and "s/it" not in text:
        return [text]
    found = _BAR_END.search(text)
    return [text[: found.end()], text[found.end() :]] if found is not None else [text]


def _backspaced(text: str) -> str:
    out: list[str] = []
    for character in text:
        if character != "\b":
            out.append(character)
        elif out:
            out.pop()
    return "".join(out)
