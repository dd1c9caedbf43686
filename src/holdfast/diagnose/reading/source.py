"""One file on its way through: from blocks of bytes to errors, progress, starts and the last lines."""

from __future__ import annotations

import math
import re
from typing import Final

from holdfast.diagnose.reading.blocks import Block
from holdfast.diagnose.reading.collector import Events, Key
from holdfast.diagnose.reading.forms import opens, read_line
from holdfast.diagnose.reading.forms.found import Answer, Assembler, Found, single
from holdfast.diagnose.reading.line import Line, cleaned, parts
from holdfast.diagnose.reading.prefilter import PROGRESS, START, TROUBLE
from holdfast.diagnose.reading.prefixes import Prefixes
from holdfast.diagnose.reading.progress import Progress, sign
from holdfast.diagnose.reading.split import SAMPLED, Split
from holdfast.diagnose.reading.starts import Starts
from holdfast.diagnose.reading.tail import LINES_READ, UNUSUAL_LINES, Tail, of_lines
from holdfast.diagnose.reading.templates import Templates
from holdfast.domain.log_event import LogForm

_OPEN_MAX: Final = 1024  # Writers whose errors are put together at the same time.
_SILENT_LINES_MAX: Final = 2000  # An error that nobody goes on with is complete.
_RANKS_MAX: Final = 1 << 16
_DULL_MAX: Final = 8192
_CALM_LINES: Final = 12_000  # Read with care, whatever comes. After that of every block only so many: a flood says the same over and over.
_FLOOD_LINES_PER_BLOCK: Final = 12
_KNOWN_COST: Final = 0.04  # What a line costs that was read before, against one that is read.
_READ_TIMES: Final = 4
_READ_LAST: Final = 200  # Lines at the end of a file are read however often they came.
_CALM_BLOCKS: Final = 4
_PROGRESS_PER_BLOCK: Final = (400, 40)  # In the first blocks, and after them.
_WRITER: Final = re.compile(rb"^[\s\[(]*\d{1,6}(?:,\d+)?[:\]]|\[[A-Za-z_.-]*\d{1,6}(?:\|\d+)?\]|[Rr](?:ank|ANK)[\"'\s:=]{0,4}\d+|^\([^)]{1,80}\)"
    rb"|\d\d:\d\d:\d\d\S* [\w.-]+ |^[\w.-]{1,40}:")
_USUAL_PER_BLOCK: Final = (100, 8)
# A line that tells of progress and has one of these tells of more.
_GRAVE_WORDS: Final = frozenset(
    ("diverged", "diverging", "divergence", "exploded", "exploding", "abort", "aborting", "aborted", "stopped", "terminated", "failed", "exception",
    "overflow", "nans")
)
_BLUNT: Final = bytes.maketrans(b"123456789abcdef", b"000000000000000")


class Source:
    def __init__(self, path: str, events: Events, progress: Progress, starts: Starts, ranks: set[int], usual: Templates, *, brief: bool) -> None:
        self.path = path
        self.lines = 0  # Line ends so far.
        self.thinned = False
        self.exit_codes: list[tuple[int | None, int]] = []
        self._events, self._progress, self._starts, self._ranks = events, progress, starts, ranks
        self._usual = usual
        self._brief = brief  # One of very many: a few of its last lines are kept, and what it usually says is not learned.
        self._prefixes = Prefixes(path)
        self._where = self._prefixes.node or path
        self._open: dict[tuple[int | None, str, str], tuple[Assembler, int]] = {}
        self._known: dict[bytes, tuple[Key, int]] = {}  # Errors of one line that came before, and how often they were read.
        self._dull: set[bytes] = set()  # Lines that hinted at something and said nothing, digits aside.
        self._keys: list[Key] = []  # Of what the line in hand told.
        self._read = 0.0
        self._blocks = 0
        self._before: Split | None = None
        self._now: Split | None = None
        starts.file(path)
        if self._prefixes.rank is not None:
            ranks.add(self._prefixes.rank)

    def block(self, block: Block) -> None:
        split = Split(block.data, self.lines + 1, last=block.last)
        if self._now is None:
            self._prefixes.vote([cleaned(split.raw(index)) for index in range(min(len(split), 80))])
        self._before, self._now = self._now, split
        calm = self._read < _CALM_LINES or block.last
        progress_max = _PROGRESS_PER_BLOCK[self._blocks >= _CALM_BLOCKS and not block.last]
        self._walk(split, len(split) if calm else _FLOOD_LINES_PER_BLOCK, progress_max)
        self._blocks += 1
        self.thinned |= split.cut
        if not self._brief:
            self._learn(split)
        self.lines += split.feeds
        if block.last and not block.data.endswith(b"\n"):
            self.lines += 1  # A last line without an end.

    def _learn(self, split: Split) -> None:
        """Some lines of each block, evenly, but for the last ones of a file: what the log usually says."""
        lines = len(split) - UNUSUAL_LINES if split.last else len(split)
        for index in range(0, lines, max(1, lines // _USUAL_PER_BLOCK[self._blocks > _CALM_BLOCKS])):
            raw = split.raw(index)
            if raw:
                for line in self._prefixes.lines(cleaned(raw), 0)[:1]:
                    self._usual.learn(line.text)

    def end(self) -> Tail:
        for assembler, _ in self._open.values():
            self._keep(assembler.finish())
        self._open.clear()
        return of_lines(self._last_lines(), self.path, self._usual)

    def _walk(self, split: Split, trouble_max: int, progress_max: int) -> None:
        """From one line that deserves a look to the next; line by line while an error is being put together."""
        wanted = iter(split.to_read(trouble_max, progress_max).tolist())
        following = next(wanted, len(split))
        index = -1
        while True:
            index = index + 1 if self._open or self._prefixes.waits else following
            if index >= len(split):
                return
            hinted = index >= following
            while following <= index:
                following = next(wanted, len(split))
            self._look(split, index, hinted)

    def _look(self, split: Split, index: int, hinted: bool) -> None:
        raw = split.raw(index)
        kind = int(split.kinds[index]) if hinted else 0
        if not raw and not self._open:
            return
        if self._prefixes.waits:
            kind |= TROUBLE
        blunt = b""
        if hinted and not self._open:
            blunt = blunted(raw)
            self._read += _KNOWN_COST
            if blunt in self._dull and not kind & SAMPLED:
                return
            if (known := self._known.get(blunt + _who(raw))) is not None and known[1] >= _READ_TIMES and not (split.last and index > len(split) - _READ_LAST):
                self._events.again(known[0], int(split.numbers[index]))
                return
        self._read += bool(kind & ~(PROGRESS | SAMPLED))
        number = int(split.numbers[index])
        told = False
        self._keys.clear()
        texts = parts(cleaned(raw))
        for text in texts:
            lines = self._prefixes.lines(text, number)
            for line in lines:
                told |= self._line(line, kind if len(lines) == len(texts) == 1 else TROUBLE | PROGRESS)
            if len(lines) > 1:
                self._close(lines[-1].writer)  # A record that holds a whole stack goes on nowhere else.
        if blunt and len(self._keys) == 1 and not self._open:
            if len(self._known) >= _DULL_MAX:
                self._known.clear()
            name = blunt + _who(raw)
            self._known[name] = (self._keys[-1], self._known.get(name, (self._keys[-1], 0))[1] + 1)
        if blunt and not told:
            if len(self._dull) >= _DULL_MAX:
                self._dull.clear()
            self._dull.add(blunt)

    def _line(self, line: Line, kind: int) -> bool:
        """True when the line told of trouble, or belongs to something that does."""
        if line.about is not None and len(self._ranks) < _RANKS_MAX:
            self._ranks.add(line.about)
        if self._goes_on(line):
            return True
        if not kind or not line.text.strip():
            return False
        progress = sign(line, self.path) if kind & PROGRESS else None
        if progress is not None:
            self._progress.add(progress, (self._where, line.about))
            self._starts.happened()
            if progress.loss is None or math.isfinite(progress.loss):
                if not kind & TROUBLE or line.words.isdisjoint(_GRAVE_WORDS):
                    return False
                found = read_line(line)
                self._keep(found)
                return found is not None
            self._keep(single(LogForm.LINE, "loss not finite", line.text, line))
            return True
        if not kind & (TROUBLE | START):
            return False
        if kind & START:
            self._starts.see(line)
        assembler = opens(line)
        if assembler is not None:
            if len(self._open) < _OPEN_MAX:
                self._open[line.writer] = (assembler, line.number)
            return True
        found = read_line(line)
        self._keep(found)
        return found is not None

    def _goes_on(self, line: Line) -> bool:
        """Give the line to the error its writer is in the middle of."""
        if not self._open:
            return False
        held = self._open.get(line.writer)
        if held is None:
            for writer, (_, last) in list(self._open.items()) if line.number % 64 == 0 else ():
                if line.number - last > _SILENT_LINES_MAX:
                    self._close(writer)
            return False
        answer = held[0].feed(line)
        if answer is Answer.TAKEN:
            self._open[line.writer] = (held[0], line.number)
        elif answer is Answer.ENDED or line.number - held[1] > _SILENT_LINES_MAX:
            self._close(line.writer)
        return answer is Answer.TAKEN

    def _close(self, writer: tuple[int | None, str, str]) -> None:
        held = self._open.pop(writer, None)
        if held is not None:
            self._keep(held[0].finish())

    def _keep(self, found: Found | None) -> None:
        if found is None:
            return
        self.exit_codes += found.exit_codes
        self._keys.append(self._events.add(found, self.path, self._where))
        if not found.warning:
            self._starts.happened()

    def _last_lines(self) -> list[Line]:
        raws: list[tuple[bytes, int]] = []
        most = UNUSUAL_LINES if self._brief else LINES_READ
        for split in (self._now, self._before):
            if split is not None and len(raws) < most:
                first = max(0, len(split) - (most - len(raws)))
                raws = [(split.raw(index), int(split.numbers[index])) for index in range(first, len(split))] + raws
        return [line for raw, number in raws for line in self._prefixes.lines(cleaned(raw), number)]


def _who(raw: bytes) -> bytes:
    """What may tell the writer of a line: two that say the same are not one."""
    found = _WRITER.search(raw, 0, 160)
    return found[0] if found is not None else b""


def blunted(raw: bytes) -> bytes:
    """A line without what differs between two of a kind: numbers, and letters that may be digits."""
    blunt = raw.translate(_BLUNT)
    return blunt.replace(b"00000000", b"0").replace(b"000", b"0").replace(b"00", b"0")
