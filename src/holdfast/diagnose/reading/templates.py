"""Templates of log lines: which lines are the same but for their numbers and names; and the fingerprint of an error.

The Drain algorithm (He, Zhu, Zheng, Lyu, ICWS 2017): a tree of a fixed depth leads by the number of words and the first of them to a short list of templates;
the most similar one takes the line, and where the two differ it has a gap from then on. Streaming, and bounded: the template unused for longest makes room.

Is wrong    when a message starts with what varies, as a user's name does: it becomes a template for each. Mask it first, or be content with several.
Costs       some 15 µs a line; for 2,000 templates about 2 MB.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from holdfast.domain.log_event import LogEvent, LogForm

GAP: Final = "<*>"
_WORDS_MAX: Final = 60
_LEADING_WORDS: Final = 2  # The tree's depth, less its root and its leaves.

_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+")
_DIRECTORY: Final = re.compile(r"(?<![\w<>])(?:[A-Za-z]:)?(?:[/\\][\w.@+~=-]+)*[/\\](?=[\w.@+~=-])")
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-fA-F:]{2,}\]:\d+")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F-]*\d)(?=[0-9a-fA-F-]*[a-fA-F])[0-9a-fA-F]{6,}(?:-[0-9a-fA-F]{4,})*\b")
_HEX_LIKE: Final = re.compile(r"\d[a-fA-Fx]|[a-fA-F]\d")
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?")
# Numbers that are names stay: a code, a signal, an errno, a status of HTTP, a type. All others are masked, also inside words (node7).
_NAMED_BEFORE: Final = re.compile(r"(?:\b(?:errno|signal|status|code|exitcode|http|xid|error)[ :=(]{1,3}-?|\b(?:float|bfloat|u?int|complex|fp|bf|sm_|cu))$",
    re.IGNORECASE)
_NAMED_AFTER: Final = re.compile(r" (?:Client|Server) Error")


@lru_cache(maxsize=2048)  # Neighbouring lines are compared with each other, and messages asked about twice.
def masked(text: str) -> str:
    """Without what differs from one time to the next: numbers, addresses, directories."""
    if "://" in text:
        text = _URL.sub("<url>", text)
    if "/" in text or "\\" in text:
        text = _DIRECTORY.sub("<dir>/", text)
    if text.count(".") >= 3 or "]:" in text:
        text = _ADDRESS.sub("<ip>", text)
    if _HEX_LIKE.search(text):
        text = _HEX.sub("<hex>", text)
    return _NUMBER.sub(_number, text)


def _number(found: re.Match[str]) -> str:
    begin, end = found.span()
    if end - begin <= 4 and (_NAMED_BEFORE.search(found.string, max(0, begin - 12), begin) or _NAMED_AFTER.match(found.string, end)):
        return found[0]
    return "<n>"


def fingerprint(event: LogEvent) -> str:
    """The same for the same failure elsewhere. Where a message says next to nothing (KeyError: 3), the function that raised it is part of it."""
    said = masked(event.message)[:300]
    where = event.frames[-1].function if event.frames and event.form is LogForm.PYTHON and len(said) < 12 else ""
    return hashlib.blake2b(f"{event.form} {event.error} {said} {where}".encode("utf-8", "replace"), digest_size=8).hexdigest()


@dataclass(slots=True)
class Template:
    number: int
    words: list[str]
    times: int = 1

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Templates:
    def __init__(self, *, similarity: float = 0.6, templates_max: int = 2000) -> None:
        self._similarity = similarity
        self._templates_max = templates_max
        self._leaves: dict[tuple[int, tuple[str, ...]], list[Template]] = {}
        self._recent: OrderedDict[int, tuple[tuple[int, tuple[str, ...]], Template]] = OrderedDict()
        self._made = 0

    def __len__(self) -> int:
        return len(self._recent)

    def learn(self, text: str) -> Template:
        """The template of a line, which knows it from now on."""
        words = words_of(text)
        leaf = _leaf(words)
        found = self._best(words, leaf)
        if found is None:
            return self._new(words, leaf)
        found.words = [one if one == other else GAP for one, other in zip(found.words, words, strict=True)]
        found.times += 1
        self._recent.move_to_end(found.number)
        return found

    def find(self, text: str) -> Template | None:
        """The template a line has, if it has one; nothing is learned."""
        words = words_of(text)
        return self._best(words, _leaf(words))

    def all(self) -> list[Template]:
        return [template for _, template in self._recent.values()]

    def _best(self, words: Sequence[str], leaf: tuple[int, tuple[str, ...]]) -> Template | None:
        best, best_alike = None, self._similarity
        for template in self._leaves.get(leaf, ()):
            # A gap is like anything, but counts for less than a word that agrees: otherwise the widest template would take all.
            same = sum(1.0 if one == other else 0.3 if one == GAP else 0.0 for one, other in zip(template.words, words, strict=True))
            alike = same / len(words) if words else 1.0
            if alike >= best_alike:
                best, best_alike = template, alike
        return best

    def _new(self, words: Sequence[str], leaf: tuple[int, tuple[str, ...]]) -> Template:
        self._made += 1
        template = Template(self._made, list(words))
        self._leaves.setdefault(leaf, []).append(template)
        self._recent[template.number] = (leaf, template)
        if len(self._recent) > self._templates_max:
            _, (old_leaf, old) = self._recent.popitem(last=False)
            self._leaves[old_leaf].remove(old)
            if not self._leaves[old_leaf]:
                del self._leaves[old_leaf]
        return template


def words_of(text: str) -> tuple[str, ...]:
    return tuple(masked(text).split()[:_WORDS_MAX])


def _leaf(words: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Where in the tree: by length, then by the first words; those that hold something masked are all one."""
    return len(words), tuple(GAP if "<" in word else word for word in words[:_LEADING_WORDS])
