"""A signature: words that a library, the kernel or a scheduler is known to print, and what they mean.

Phrases are plain text, whatever the case; `…` stands for anything in between, on at most a few lines, and `·` for a part of one word. No regular expressions: a
phrase can be read, and searched for in the library that prints it. All conditions that are given must hold.

Where it looks: in a traceback, at the exception and those it was raised from, never at lines of code; elsewhere at all lines of the event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from holdfast.diagnose.taxonomy import Permanence, Role, Scope
from holdfast.domain.log_event import LogEvent, LogForm

# How much a signature speaks for its class, in log-odds against all others.
SURE = 6.0  # Says the cause itself, and nothing else prints it.
STRONG = 4.5
FAIR = 3.0  # Mostly this, at times something else behind it.
WEAK = 1.5  # Better than nothing, and beaten by anything clearer.

_GAP = 400  # How far apart the two sides of `…` may be.
_TEXT = 6000  # Characters of an event that are looked at.
# An exception on a line of its own, behind whatever a logger puts there.
_RAISED = re.compile(
    r"(?:^|[\s:\]])((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Expired|Exit|Conflict)|(?:[a-z_]\w*\.)+(?:[A-Z]\w+|error|timeout))(?::|$)"
)
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    name: str
    cause: str
    source: str  # Who prints it, and where that is documented.
    example: str  # A log in our own words that it must find.
    says: tuple[str, ...] = ()  # One of these.
    also: tuple[str, ...] = ()  # And one of these.
    error: tuple[str, ...] = ()  # And the exception's class is one of these, without its module.
    frames: tuple[str, ...] = ()  # And a frame is in one of these paths or functions.
    raised_in: tuple[str, ...] = ()  # And the last frame is in one of these paths.
    unless: tuple[str, ...] = ()  # And none of these.
    form: tuple[LogForm, ...] = ()
    strength: float = STRONG
    role: Role | None = None  # Where it is not that of the class.
    permanence: Permanence | None = None
    scope: Scope | None = None
    stands: bool = False  # Also as a warning: the run goes on, and not as it should.
    running: bool | None = None  # True: only after the first step; False: only before it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """What signatures look at of one event."""

    form: LogForm
    error: str
    text: str  # Lower case.
    frames: str
    raised_in: str  # The path of the last frame.
    running: bool


def readable(event: LogEvent, *, running: bool) -> Readable:
    head = "\n".join((f"{event.error}: {event.message}", *event.under))
    lines = "\n".join(event.text)
    whole = f"{head}\n{lines}"[:_TEXT].lower()
    frames = "\n".join(f"{one.path} {one.function}" for one in event.frames).lower().replace("\\", "/")
    text = f"{head}\n{_spoken(event.text)}"[:_TEXT].lower() if event.form is LogForm.PYTHON else whole
    error = _raised(event)
    raised_in = event.frames[-1].path.lower().replace("\\", "/") if event.frames else ""
    return Readable(form=event.form, error=error.rsplit(".", 1)[-1].lower(), text=text, frames=frames, raised_in=raised_in, running=running)


def _raised(event: LogEvent) -> str:
    """The exception's class: as it was read, or on a line of its own, or at the end of a traceback that stands indented in a box."""
    if event.form is LogForm.SCHEDULER:  # A launcher repeats what its child raised.
        lines = (line.strip().removeprefix("traceback : ") for line in event.text)
        return next((found[1] for line in lines if (found := _RAISED.match(line)) and not found[1].endswith("ChildFailedError")), event.error)
    if event.error:
        return event.error
    if (said_in := _RAISED.search(event.message)) is not None:
        return said_in[1]
    ends = event.text[-4:] if event.form is LogForm.PYTHON else ()
    return next((found[1] for line in reversed(ends) if (found := _RAISED.search(line.strip()))), "")


def fires(signature: Signature, on: Readable) -> bool:
    if signature.form and on.form not in signature.form:
        return False
    if signature.running is not None and signature.running is not on.running:
        return False
    if signature.error and on.error not in _names(signature.error):
        return False
    if signature.frames and not any(one.lower() in on.frames for one in signature.frames):
        return False
    if signature.raised_in and not any(one.lower() in on.raised_in for one in signature.raised_in):
        return False
    if signature.says and not said(signature.says, on.text):
        return False
    if signature.also and not said(signature.also, on.text):
        return False
    return not (signature.unless and said(signature.unless, on.text))


def said(phrases: Sequence[str], text: str) -> bool:
    return any(_found(phrase, text) for phrase in phrases)


@cache
def _parts(phrase: str) -> tuple[str, ...]:
    lower = phrase.lower()
    return tuple(part.strip(" ") for part in lower.split("…")) if "…" in lower else (lower,)


def longest_part(phrase: str) -> str:
    """What must stand in a text for the phrase to be found in it."""
    return max((piece for part in _parts(phrase) for piece in part.split("·")), key=len)


@cache
def _with_words(phrase: str) -> re.Pattern[str]:
    return re.compile(r"[^\s'\"]+".join(map(re.escape, phrase.lower().split("·"))))


@cache
def _names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(one.lower() for one in names)


def _found(phrase: str, text: str) -> bool:
    if "·" in phrase:
        return _with_words(phrase).search(text) is not None
    first, *rest = _parts(phrase)
    at = text.find(first)
    while at >= 0:
        end = at + len(first)
        for part in rest:
            found = text.find(part, end, end + _GAP + len(part))
            if found < 0:
                break
            end = found + len(part)
        else:
            return True
        if not rest:
            return True
        at = text.find(first, at + 1)
    return False


def _spoken(lines: Sequence[str]) -> str:
    """A traceback without its frames and the code they quote: what the exceptions say."""
    kept: list[str] = []
    code = False
    for line in lines:
        bare = line.strip()
        if bare.startswith(('File "', "Traceback (most recent call last)", "^", "~")) or bare.startswith(_CHAINED):
            code = bare.startswith('File "')
        elif code and line.startswith((" ", "\t")) and not _RAISED.match(bare):
            pass  # The line of code below a frame, and marks below that.
        else:
            code = False
            kept.append(line)
    return "\n".join(kept)
