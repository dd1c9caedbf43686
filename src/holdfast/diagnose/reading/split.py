"""A block as a table of lines: where each begins and ends, its number, and what it hints at. No line is made into text here.

A carriage return ends a line too, for what stands before it was overwritten on a screen; but it does not count as one, so that numbers are those an editor
shows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.reading.prefilter import GRAVE, PROGRESS, START, TROUBLE, hints

SAMPLED: Final = 128  # Among the kinds: a line that was chosen to tell of progress.
_CLOSE: Final = 16  # So many more signs of progress right after the last trouble, and at the end: whether training went on is decided there.
_LAST: Final = 60
_LINE_FEED, _RETURN = 10, 13


class Split:
    def __init__(self, data: bytes, first_number: int, *, last: bool) -> None:
        self.last = last
        self.cut = False
        self._data = data
        letters = np.frombuffer(data, np.uint8)
        feeds = np.flatnonzero(letters == _LINE_FEED)
        self.feeds = len(feeds)
        ends = feeds
        if b"\r" in data:
            returns = np.flatnonzero(letters == _RETURN)
            lone = returns[(returns + 1 >= len(letters)) | (letters[np.minimum(returns + 1, len(letters) - 1)] != _LINE_FEED)]
            ends = np.sort(np.concatenate([feeds, lone]))  # No place is in both.
        if not len(ends) or ends[-1] != len(letters) - 1:
            ends = np.append(ends, len(letters))
        self.ends: NDArray[np.intp] = ends
        self.begins: NDArray[np.intp] = np.concatenate([np.zeros(1, np.intp), ends[:-1] + 1])
        self.numbers: NDArray[np.intp] = first_number + np.searchsorted(feeds, self.begins)
        self.kinds = np.zeros(len(ends), np.uint8)
        place, kind = hints(data)
        at = np.searchsorted(ends, place)
        for one in (TROUBLE, PROGRESS, START, GRAVE):
            self.kinds[at[(kind & one) != 0]] |= one

    def __len__(self) -> int:
        return len(self.ends)

    def raw(self, index: int) -> bytes:
        return self._data[self.begins[index] : self.ends[index]]

    def to_read(self, trouble_max: int, progress_max: int) -> NDArray[np.intp]:
        """The lines to look at, in order: all that hint at trouble (of a flood the first and the last), and some of those that tell of progress."""
        if self.last:
            self.kinds[-_LAST:] |= TROUBLE  # Whatever they say: what ends a log is often all it says.
        trouble = np.flatnonzero(self.kinds & (TROUBLE | START))
        if len(trouble) > trouble_max:
            self.cut = True
            grave = np.flatnonzero(self.kinds & GRAVE)
            half = trouble_max // 2
            trouble = np.concatenate([trouble[:half], grave[:half], grave[-half:], trouble[-half:]])
        progress = np.flatnonzero(self.kinds & PROGRESS)
        if len(progress) > progress_max + 2 * _CLOSE:
            after = np.searchsorted(progress, trouble.max()) if len(trouble) else 0
            progress = np.concatenate([progress[:: -(-len(progress) // progress_max)], progress[after : after + _CLOSE], progress[-_CLOSE:]])
        self.kinds[progress] |= SAMPLED
        wanted = np.zeros(len(self), bool)
        wanted[trouble] = wanted[progress] = True
        return np.flatnonzero(wanted)
