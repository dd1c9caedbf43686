"""Signs that training went on: steps, epochs, losses and bars, of any framework, thinned to a bounded number for each writer."""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from holdfast.diagnose.reading.line import Line
from holdfast.domain.log_event import LogProgress

# All over small letters. Each starts with letters that stand in few lines: a search for those is quick.
_NUMBER: Final = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?)(?![\w.])"
_LOSS: Final = re.compile(rf"loss(?:es)?(?:/\w+)?['\"]?\s{{0,8}}(?:is\s|was\s|[:=|])?\s{{0,8}}(?:tensor)?\(?['\"]?(?P<loss>{_NUMBER})")
_STEP: Final = re.compile(r"(?:step|iteration|iter|num_updates|update|batch)s?['\"]?\s{0,8}(?:[:=#\[(]|no\.?)?\s{0,8}(?P<step>\d{1,12})(?![\d.]*[a-z%])")
_EPOCH: Final = re.compile(r"epochs?['\"]?\s{0,8}[:=\[(#]?\s{0,8}(?P<epoch>\d+(?:\.\d+)?)")
_BAR: Final = re.compile(r"%\|[^|]{0,400}\|\s{0,8}(?P<step>\d{1,12})(?:\.\d+)?[kmg]?/(?P<of>\d+)")
_NOT_TRAINING: Final = re.compile(r"download|loading|fetching|extract|tokeniz|map|filter|generating|casting|preprocess|upload|resolving|creating|unpack")
_TROUBLE: Final = re.compile(r"error|exception|fail|traceback|timed? ?out|abort|kill|saved|saving|resum|restor|load")
_PER_WRITER_MAX: Final = 256
_ALL_MAX: Final = 40_000
_ODD_MAX: Final = 64
_WRITERS_MAX: Final = 4096

Writer = tuple[str, int | None]


def sign(line: Line, path: str) -> LogProgress | None:
    """What a line says about how far training has come; None when it says nothing."""
    text = line.text.lower()
    if line.level in ("error", "fatal") and _TROUBLE.search(text):
        return None
    loss = _LOSS.search(text) if "loss" in text else None
    bar = _BAR.search(text) if "%|" in text else None
    if bar is not None and loss is None and _NOT_TRAINING.search(text, 0, bar.start()):
        return None
    step = _STEP.search(text)
    if loss is None and bar is None and ((step is None and not _EPOCH.search(text)) or _TROUBLE.search(text)):
        return None
    number = int(step["step"]) if step else int(bar["step"]) if bar else None
    return LogProgress(path=path, line=line.number, rank=line.about, at_s=line.at_s, step=number, loss=float(loss["loss"]) if loss else None)


@dataclass(slots=True)
class _Kept:
    """One writer's signs: the first, the last, and every so many between."""

    signs: int = 0
    stride: int = 1
    first: LogProgress | None = None
    last: LogProgress | None = None
    between: list[LogProgress] = field(default_factory=list)

    def add(self, one: LogProgress, most: int) -> bool:
        last = self.last
        if last is not None and one.step == last.step and one.loss == last.loss and one.path == last.path:
            return False  # The same state of a bar, drawn again.
        self.signs += 1
        self.first = self.first or one
        self.last = one
        if self.signs % self.stride == 0:
            self.between.append(one)
            if len(self.between) > most:
                self.between = self.between[1::2]
                self.stride *= 2
        return True


class Progress:
    def __init__(self) -> None:
        self._kept: dict[Writer, _Kept] = {}
        self._by_place: dict[str, int] = {}
        self._ranked: set[str] = set()
        self._odd_first: list[LogProgress] = []
        self._odd_last: deque[LogProgress] = deque(maxlen=_ODD_MAX)

    def add(self, one: LogProgress, writer: Writer) -> None:
        kept = self._kept.get(writer)
        if kept is None:
            if len(self._kept) >= _WRITERS_MAX:
                return
            kept = self._kept[writer] = _Kept()
            if writer[1] is not None:
                self._ranked.add(writer[0])
        if not kept.add(one, max(8, min(_PER_WRITER_MAX, _ALL_MAX // len(self._kept)))):
            return
        self._by_place[writer[0]] = self._by_place.get(writer[0], 0) + 1
        if one.loss is not None and not math.isfinite(one.loss):
            if len(self._odd_first) < _ODD_MAX:
                self._odd_first.append(one)
            else:
                self._odd_last.append(one)

    def signs(self, writer: Writer) -> int:
        kept = self._kept.get(writer)
        return kept.signs if kept is not None else 0

    def place_signs(self, where: str) -> int:
        """Of all writers of one place."""
        return self._by_place.get(where, 0)

    def told_by_rank(self, where: str) -> bool:
        return where in self._ranked

    def all(self) -> tuple[LogProgress, ...]:
        """What is kept, in the order of writers; fewer of each where there are many."""
        each = max(2, 4 * _PER_WRITER_MAX // max(1, len(self._kept)))
        found: list[LogProgress] = [*self._odd_first, *self._odd_last]
        for kept in self._kept.values():
            stride = -(-len(kept.between) // each) if kept.between else 1
            found += [one for one in (kept.first, *kept.between[::stride], kept.last) if one is not None]
        return tuple(sorted(dict.fromkeys(found), key=lambda one: (one.path, one.line)))
