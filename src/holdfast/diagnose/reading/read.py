"""One pass over logs of any size, in bounded memory: sources of bytes in, a digest out.

A block of some thousand lines at a time: hints say which lines deserve a look (`prefilter.py`); those are cleaned and told apart by their writer (`line.py`,
`prefixes.py`); an error of several lines is put together by the reader of its form (`forms/`), one for each writer, so that ranks that print at the same time
are sorted apart. Everything else is counted and forgotten. The result depends on the bytes alone, and not on how they were handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from holdfast.diagnose.reading.blocks import HEAD_BYTES, blocks, odd_because
from holdfast.diagnose.reading.collector import Events
from holdfast.diagnose.reading.masking import without_secrets
from holdfast.diagnose.reading.progress import Progress
from holdfast.diagnose.reading.source import Source
from holdfast.diagnose.reading.starts import Starts
from holdfast.diagnose.reading.tail import Tails
from holdfast.diagnose.reading.templates import Templates
from holdfast.domain.log_event import LogDigest, LogEvent, LogForm, LogLine

_NOTES_MAX: Final = 50
_RARE_MAX: Final = 100
_MANY: Final = 256  # Files: of more, each is read for less.
_EXIT_CODES_MAX: Final = 8192
_WENT_ON_SIGNS: Final = 5  # Signs of progress after an error that make it one that was caught: other ranks may print a few before they notice.
_MAY_BE_CAUGHT: Final = frozenset((LogForm.PYTHON, LogForm.LINE, LogForm.JAVA, LogForm.TENSORFLOW))


def read(sources: Iterable[tuple[str, Iterable[bytes]]]) -> LogDigest:
    """The digest of some logs: each a path as it is shown, and its bytes in chunks of any size."""
    reading = _Reading()
    for path, chunks in sources:
        reading.source(path, chunks)
    return reading.digest()


class _Reading:
    """What is kept over all sources."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._events = Events(self._progress)
        self._tails = Tails()
        self._starts = Starts()
        self._usual = Templates()
        self._rare: list[LogLine] = []
        self._paths: list[str] = []
        self._lines = 0
        self._size_bytes = 0
        self._ranks: set[int] = set()
        self._exit_codes: dict[tuple[int | None, int], None] = {}
        self._notes: list[str] = []
        self._finished: dict[str, int] = {}
        self._unread_because = "there is no log to read"

    def source(self, path: str, chunks: Iterable[bytes]) -> None:
        self._paths.append(path)
        size_before = self._size_bytes
        one: Source | None = None
        for block in blocks(self._counted(chunks)):
            if one is None:
                because = odd_because(block.data[:HEAD_BYTES])
                if because:
                    self._size_bytes = size_before  # Of what is not read nothing counts.
                    self._unread(f"{path} {because}")
                    return
                one = Source(path, self._events, self._progress, self._starts, self._ranks, self._usual, brief=len(self._paths) > _MANY)
            one.block(block)
        if one is None:
            self._unread(f"{path} is empty" if self._size_bytes == size_before else f"{path} holds no text")
            return
        tail = one.end()
        self._tails.add(path, tail.lines)
        self._rare = [*self._rare, *tail.rare][:_RARE_MAX]
        self._lines += one.lines
        if tail.finished_line:
            self._finished[path] = tail.finished_line
        if not tail.lines:
            self._unread(f"{path} holds no text")
        if one.thinned:
            self._note(f"{path} speaks of trouble on more lines than can be read one by one; of its middle a sample was read.")
        for code in one.exit_codes[: _EXIT_CODES_MAX - len(self._exit_codes)]:
            self._exit_codes[code] = None

    def digest(self) -> LogDigest:
        starts = self._starts.all()
        latest = dict(starts)
        events = sorted((_judged(event, latest) for event in self._events.all()), key=lambda event: (event.path, event.first_line))
        tail = tuple(replace(line, text=without_secrets(line.text)) for line in self._tails.all())
        return LogDigest(
            paths=tuple(self._paths), lines=self._lines, size_bytes=self._size_bytes, events=tuple(map(_safe, events)), tail=tail,
            progress=self._progress.all(), said_finished=self._said_finished(events), exit_codes=tuple(self._exit_codes), ranks=tuple(sorted(self._ranks)),
            rare=tuple(replace(line, text=without_secrets(line.text)) for line in self._rare), started_lines=starts,
            no_text_because="" if tail else self._unread_because, notes=tuple(self._notes),
        )  # fmt: skip

    def _said_finished(self, events: list[LogEvent]) -> bool:
        """A file says so near its end, and nothing of weight comes after it."""
        after = {event.path for event in events if not event.warning and event.first_line > self._finished.get(event.path, event.first_line)}
        return bool(self._finished.keys() - after)

    def _unread(self, because: str) -> None:
        self._unread_because = because
        self._note(f"{because}, and was not read.")

    def _note(self, text: str) -> None:
        if len(self._notes) < _NOTES_MAX:
            self._notes.append(text)

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._size_bytes += len(chunk)
            yield chunk


def _judged(event: LogEvent, latest_starts: dict[str, int]) -> LogEvent:
    """An error that training went on after was caught, unless what went on is the next run."""
    if event.progress_after < _WENT_ON_SIGNS or event.form not in _MAY_BE_CAUGHT or latest_starts.get(event.path, 0) > event.first_line:
        return event
    return replace(event, warning=True)


def _safe(event: LogEvent) -> LogEvent:
    return replace(
        event, message=without_secrets(event.message), text=tuple(without_secrets("\n".join(event.text)).split("\n")), under=tuple(map(without_secrets,
            event.under)),
    )  # fmt: skip


