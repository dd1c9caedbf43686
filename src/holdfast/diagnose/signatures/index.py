"""Which signatures can fire on a text at all: found by four letters of each phrase, so that a thousand events of 512 ranks are read in a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.diagnose.signatures.signature import Readable, Signature, longest_part, said

_LETTERS = 4


class Index:
    """A phrase is looked for where four rare letters of it stand in the text; a signature without phrases is always possible."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        phrases = [(number, phrase) for number, one in enumerate(signatures) for phrase in one.says]
        often = Counter(letters for _, phrase in phrases for letters in _some(longest_part(phrase)))
        self._signatures = signatures
        short = {number for number, phrase in phrases if len(longest_part(phrase)) < _LETTERS}
        self._always = short | {number for number, one in enumerate(signatures) if not one.says}
        self._by_letters: dict[str, list[tuple[int, str]]] = {}
        for number, phrase in phrases:
            if len(longest_part(phrase)) >= _LETTERS:
                rarest = min(_some(longest_part(phrase)), key=lambda letters: (often[letters], letters))
                self._by_letters.setdefault(rarest, []).append((number, phrase))
        self._letters = frozenset(self._by_letters)

    def possible(self, on: Readable) -> list[Signature]:
        """In the order of the signatures."""
        found = set(self._always)
        for letters in self._letters & _pieces(on.text):
            for number, phrase in self._by_letters[letters]:
                if number not in found and said((phrase,), on.text):
                    found.add(number)
        return [self._signatures[number] for number in sorted(found)]


def _some(phrase: str) -> list[str]:
    """Every third four letters of a phrase: enough to choose from, in a third of the time it takes every command to start."""
    return [phrase[at : at + _LETTERS] for at in range(0, len(phrase) - _LETTERS + 1, 3)]


def _pieces(text: str) -> set[str]:
    return {text[at : at + _LETTERS] for at in range(len(text) - _LETTERS + 1)}
