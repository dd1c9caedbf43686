"""A digest to weighted words.

What the errors say weighs most, the lines around them less, and the last lines least; warnings, and errors that training went on after, are words of their own
kind, so that the same sentence can speak for `healthy` there and for a cause elsewhere. Copies of the same error on other ranks are counted once, and what most
ranks say counts for less where one says something else: when one rank is gone, all the others complain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from holdfast.diagnose.text_model.tokens import words
from holdfast.domain.log_event import LogDigest, LogEvent

_EVENTS_MAX = 24  # Of a cascade's hundreds the first and the last tell the story.
_TEXT_LINES_MAX = 12
_TAIL_LINES_MAX = 30
_FRAMES_MAX = 3
_SAID, _PAIR, _PIECE, _TEXT, _TAIL, _PASSED, _FLAG = 3.0, 2.0, 0.5, 0.7, 0.6, 0.8, 1.5
_PIECE_LETTERS = 4
_CHORUS = 0.4  # What is left of the weight of what many ranks say, beside what one says.


def features(digest: LogDigest) -> dict[str, float]:
    """Each word or flag of a digest with its weight, before the model's own weights. Nothing but the digest decides it."""
    found: dict[str, float] = {}
    chosen = _chosen(digest.events)
    for event, share in chosen:
        _add_event(found, event, share)
    for line in digest.tail[-_TAIL_LINES_MAX:]:
        _add(found, words(line.text), _TAIL)
    for flag in _flags(digest, [event for event, _ in chosen]):
        found[f"#{flag}"] = _FLAG
    # How often a word is said matters less the more often it is.
    return {word: 1 + math.log(weight) if weight > 1 else weight for word, weight in found.items()}


def _chosen(events: Sequence[LogEvent]) -> list[tuple[LogEvent, float]]:
    """Different errors only, at most so many, those that nothing went on after first; and what share of its weight each has."""
    said: dict[tuple[str, tuple[str, ...], bool], LogEvent] = {}
    by: dict[tuple[str, tuple[str, ...], bool], set[tuple[int | None, str]]] = {}
    for event in events:
        key = (event.error, tuple(words(event.message)), _passed(event))
        said.setdefault(key, event)
        by.setdefault(key, set()).add((event.rank, event.path))
    fewest = min((len(by[key]) for key, event in said.items() if not _passed(event)), default=1)
    lasting = [(event, max(_CHORUS, fewest / len(by[key]))) for key, event in said.items() if not _passed(event)]
    passed = [(event, 1.0) for event in said.values() if _passed(event)]
    if len(lasting) > _EVENTS_MAX:
        half = _EVENTS_MAX // 2
        lasting = lasting[:half] + lasting[-half:]
    room = _EVENTS_MAX - len(lasting)
    return lasting + (passed[-room:] if room else [])


def _passed(event: LogEvent) -> bool:
    return event.warning or event.progress_after > 0


def _add_event(found: dict[str, float], event: LogEvent, share: float) -> None:
    said = [*words(event.error), *words(event.message)]
    if _passed(event):
        _add(found, said, _PASSED, "~")
        found[f"~form:{event.form}"] = _FLAG
        return
    _add(found, said, _SAID * share)
    _add(found, (f"{first} {second}" for first, second in pairwise(said)), _PAIR * share)
    _add(found, _pieces(said), _PIECE * share)
    for frame in event.frames[-_FRAMES_MAX:]:
        _add(found, (f"@{'/'.join(frame.path.split('/')[-2:]).lower()}", f"@{frame.function}"), _TEXT * share)
    for line in event.text[-_TEXT_LINES_MAX:]:
        _add(found, words(line), _TEXT * share)
    for cause in event.under:
        _add(found, words(cause), _SAID * share)
    found[f"form:{event.form}"] = max(found.get(f"form:{event.form}", 0.0), _FLAG * share)


def _pieces(said: Iterable[str]) -> Iterator[str]:
    """Runs of letters inside longer words: what is left of a wording when it is inflected or written together."""
    for word in said:
        if len(word) > _PIECE_LETTERS + 1 and word.isalpha():
            for start in range(len(word) - _PIECE_LETTERS + 1):
                yield f"…{word[start : start + _PIECE_LETTERS]}"


def _add(found: dict[str, float], said: Iterable[str], weight: float, mark: str = "") -> None:
    for word in said:
        name = mark + word
        found[name] = found.get(name, 0.0) + weight


def _flags(digest: LogDigest, chosen: Sequence[LogEvent]) -> Iterator[str]:
    lasting = [event for event in chosen if not _passed(event)]
    if digest.said_finished:
        yield "finished"
    if digest.progress:
        yield "progress"
        if any(one.loss is not None and not math.isfinite(one.loss) for one in digest.progress):
            yield "loss not finite"
        yield "progress, then an error" if lasting else "progress to the end"
    elif lasting:
        yield "an error before any progress"
    else:
        yield "nothing said"
    if any(_passed(event) for event in chosen):
        yield "errors that passed"
    for code in sorted({code for _, code in digest.exit_codes}):
        yield f"exit {code if code <= 128 else 128 - code}"
