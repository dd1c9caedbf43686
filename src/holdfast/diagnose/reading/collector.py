"""All errors of a log, folded: of each kind and writer the first and the last, and how often it came between. Bounded, however many there are.

A kind is one message of one rank. Where there are too many, those that most others say too make room: of 4,096 ranks that all lost their peer some are
forgotten, and the one that says something else never is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from holdfast.diagnose.reading.forms.found import Found
from holdfast.diagnose.reading.progress import Progress
from holdfast.diagnose.reading.templates import Templates, fingerprint, masked
from holdfast.domain.log_event import LogEvent

_KINDS_MAX: Final = 4000
_CLOSE_LINES: Final = 3
_ALIKE: Final = 0.8  # Of the words of two messages: higher than for lines, for two names in one message may be two causes.

Key = tuple[str, int | None, str, str, str, int]  # Place, rank, node; form, error, and the template of the message.
Message = tuple[str, str, int]
Mark = tuple[int, int, int]  # Signs of progress so far: of the rank, of lines that name no rank, of the whole place.


@dataclass(slots=True)
class _Kind:
    where: str
    first: LogEvent
    first_mark: Mark
    last: LogEvent | None = None
    last_mark: Mark = (0, 0, 0)
    more: int = 0  # How often it came after the last that was read.
    more_line: int = 0


class Events:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._templates = Templates(similarity=_ALIKE)
        self._by_message: dict[Message, dict[Key, _Kind]] = {}
        self._kinds = 0

    def add(self, found: Found, path: str, where: str) -> Key:
        event = found.event(path)
        message = (event.form.value, event.error, self._templates.learn(event.message).number)
        key = (where, event.rank, event.node, *message)
        mark = self._mark(where, event.rank)
        kinds = self._by_message.setdefault(message, {})
        if key in kinds:
            self._again(kinds[key], event, mark)
            return key
        kinds[key] = _Kind(where, event, mark)
        self._kinds += 1
        if self._kinds > _KINDS_MAX:
            self._make_room()
        return key

    def again(self, key: Key, line: int) -> None:
        """The same once more: counted, and not read again."""
        kind = self._by_message.get(key[3:], {}).get(key)
        if kind is not None:
            kind.more += 1
            kind.more_line = line
            kind.last_mark = self._mark(kind.where, kind.first.rank)

    def all(self) -> list[LogEvent]:
        found = []
        for kind in (kind for kinds in self._by_message.values() for kind in kinds.values()):
            self._settle(kind)
            for event, mark in ((kind.first, kind.first_mark), (kind.last, kind.last_mark)):
                if event is not None:
                    after = self._since(kind.where, event.rank, mark)
                    found.append(replace(event, progress_after=after, fingerprint=fingerprint(event)))
        return found

    def _make_room(self) -> None:
        """Of the message that most writers have, those in the middle go; of messages that one has each, those in the middle."""
        most = max(self._by_message.values(), key=len)
        if len(most) > 2:
            for key in list(most)[len(most) // 3 : 2 * len(most) // 3]:
                del most[key]
        else:
            messages = list(self._by_message)
            for message in messages[len(messages) // 3 : 2 * len(messages) // 3]:
                del self._by_message[message]
        self._kinds = sum(map(len, self._by_message.values()))

    def _settle(self, kind: _Kind) -> None:
        """What was only counted becomes part of the last."""
        if kind.more:
            last = kind.last or replace(kind.first, times=0)
            kind.last = replace(last, times=last.times + kind.more, first_line=kind.more_line, last_line=kind.more_line, said_line=kind.more_line,
                under_lines=(), at_s=None)
            kind.more = 0

    def _again(self, kind: _Kind, event: LogEvent, mark: Mark) -> None:
        self._settle(kind)
        close = kind.last is None and event.path == kind.first.path and event.first_line - kind.first.last_line <= _CLOSE_LINES
        if close and masked(event.message) == masked(kind.first.message):
            kind.first = replace(kind.first, times=kind.first.times + 1, last_line=max(kind.first.last_line, event.last_line))
            kind.first_mark = mark
            return
        times = kind.last.times + 1 if kind.last is not None else 1
        kind.last, kind.last_mark = replace(event, times=times), mark

    def _mark(self, where: str, rank: int | None) -> Mark:
        return self._progress.signs((where, rank)), self._progress.signs((where, None)), self._progress.place_signs(where)

    def _since(self, where: str, rank: int | None, mark: Mark) -> int:
        """Signs of the same rank since then; where lines do not say whose they are, of all of them."""
        of_rank, of_nobody, of_place = (now - then for now, then in zip(self._mark(where, rank), mark, strict=True))
        if rank is None:
            return of_place
        return of_rank if self._progress.told_by_rank(where) else of_nobody
