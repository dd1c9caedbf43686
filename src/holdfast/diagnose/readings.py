"""Readings: what the signatures make of each event of a digest, and how much each counts.

An event counts in full when nothing went on after it. A warning, a retry, an error after which its rank made progress and one of an earlier run in the same
file count next to nothing. What several signatures say of one event is not several pieces of evidence: the clearest stands, others only beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from holdfast.diagnose.signatures import FAIR, INDEX, SURE, WEAK, Index, Readable, Signature, fires, readable, said
from holdfast.diagnose.signatures.settings import REQUIREMENT
from holdfast.diagnose.taxonomy import HEALTHY, UNKNOWN, Permanence, Role, Scope, class_of
from holdfast.diagnose.taxonomy.xids import xid_of
from holdfast.domain.log_event import LogDigest, LogEvent, LogForm

_XID = re.compile(r"S?Xid(?:\s*\([^)]*\))?[:= ]*(\d{1,3})\b", re.IGNORECASE)
# What is left of an error after so many signs of progress: a bar is drawn once more when it is closed.
_RECOVERED = (1.0, 0.8, 0.4, 0.1, 0.05)
_SURVIVED = (1.0, 1.0, 0.6, 0.4, 0.4, 0.3, 0.3, 0.3, 0.2)  # What is left of a lone line after so many ordinary ones of the same writer.
_STANDS = 0.6  # A warning after which a run is not what it should be.
_HANDLED = 0.6  # An exception while another was handled: the later one ended it.
_WARNING = 0.05
_TAIL = 0.75  # A line of the tail in which nothing saw an error.
_TAIL_LINES = 60  # Of each file, from its end.
_TAIL_ALL = 240
_SAID_AS_WARNING = re.compile(r"(?<!NCCL )\b(?:WARNING|WARN|Warning|warning|DEBUG)\b")
UNREAD = "unread"  # In the place of a signature, where none knows an error.
_CALLED_ERROR = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
_LINE_UNREAD = 1.1  # Somebody's own failure, perhaps.
_WHILE_HANDLING = "During handling of the above exception"
_NO_ANSWER = ("after connection broken by", "could not fetch url", "condahttperror", "failed to fetch")
_VERSIONS = re.compile(r"\(from versions: (?!none\))", re.IGNORECASE)
_BESIDE = 1.6  # How much weaker than the clearest a second signature on one event may be.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One signature on one event."""

    event: LogEvent
    cause: str
    role: Role
    strength: float  # What the signature is worth, in log-odds.
    counts: float  # From 0 to 1: how far the event is evidence of a failure at all.
    signature: str
    source: str
    permanence: Permanence | None = None
    scope: Scope | None = None
    said_in: int | None = None  # Which of the exceptions the event was raised from says it; None: the event itself.

    @property
    def line(self) -> int:
        """Where the words stand that say it."""
        if self.said_in is not None and self.said_in < len(self.event.under_lines):
            return self.event.under_lines[self.said_in]
        return self.event.said_line or self.event.last_line

    @property
    def weight(self) -> float:
        return self.strength * self.counts


def readings(digest: LogDigest, *, index: Index = INDEX) -> list[Reading]:
    """In the order of the digest's events; what the tail adds stands at its end."""
    first_step = _first_progress(digest)
    starts = last_starts(digest)
    found: list[Reading] = []
    covered: dict[str, list[tuple[int, int]]] = {}
    for event in digest.events:
        covered.setdefault(event.path, []).append((event.first_line, event.last_line))
    after = _ordinary(digest, covered)
    handled = _handled(digest.events)
    for event in digest.events:
        counts = _counts(event, starts) * _survived(event, after) * (_HANDLED if _place(event) in handled else 1.0)
        found += read_event(event, running=_running(event, first_step), counts=counts, index=index)
    for event in _tail_events(digest, covered, starts):
        found += read_event(event, running=_running(event, first_step), counts=_TAIL * _survived(event, after), index=index)
    return _with_silent_indexes(found, digest)


def _with_silent_indexes(found: list[Reading], digest: LogDigest) -> list[Reading]:
    """An installer says the same of a version that does not exist and of an index that did not answer; its retries before tell which."""
    silent = {one.path for one in digest.events if said(_NO_ANSWER, one.message.lower())}
    answered = {one.event.path for one in found if one.signature == REQUIREMENT and _VERSIONS.search(one.event.message)}
    return [
        replace(one, cause="remote_service_error", permanence=None) if one.signature == REQUIREMENT and one.event.path in silent - answered else one
        for one in found
    ]


def read_event(event: LogEvent, *, running: bool, counts: float, index: Index = INDEX) -> list[Reading]:
    """The clearest reading of an event, and those that are nearly as clear."""
    on = readable(event, running=running)
    found = [
        Reading(
            event=event, cause=one.cause, role=one.role or class_of(one.cause).role, strength=one.strength,
            counts=max(counts, _STANDS) if one.stands and not event.progress_after else counts,
            signature=one.name, source=one.source, permanence=one.permanence, scope=one.scope, said_in=_said_in(one, event, running=running),
        )
        for one in index.possible(on)
        if fires(one, on)
    ]  # fmt: skip
    harmless = next((one for one in found if one.cause == HEALTHY), None)
    if harmless is not None:
        return [replace(harmless, counts=0.0)]
    found += _xids(event, counts)
    if not found and event.form is LogForm.LINE and not on.error and not event.warning and _CALLED_ERROR.search(event.message):
        return [Reading(event=event, cause=UNKNOWN, role=Role.ROOT, strength=_LINE_UNREAD, counts=counts, signature=UNREAD, source="a line that says error")]
    if not found and says_more_than_that_it_failed(event, on):
        return [Reading(event=event, cause=UNKNOWN, role=Role.ROOT, strength=WEAK, counts=counts, signature=UNREAD, source="an error that no signature knows")]
    best = max((one.strength for one in found if one.cause != UNKNOWN), default=0.0)
    return [one for one in found if one.strength > best - _BESIDE or one.cause == UNKNOWN]


def _said_in(signature: Signature, event: LogEvent, *, running: bool) -> int | None:
    """Returns the exception of a chain whose own words the signature finds: that line is the one to show."""
    if not event.under or fires(signature, readable(replace(event, text=(), under=()), running=running)):
        return None
    for number, raised in enumerate(event.under):
        error, _, message = raised.partition(": ")
        if fires(signature, readable(replace(event, error=error, message=message, text=(), under=()), running=running)):
            return number
    return None


def says_more_than_that_it_failed(event: LogEvent, on: Readable) -> bool:
    """An exception with a name, or native code with a message: somebody's own failure, although of no known kind. A cut traceback is not. A launcher says more
    where it repeats what its child raised."""
    if event.form is LogForm.SCHEDULER:
        return bool(on.error) and on.error != event.error.rpartition(".")[2].lower()
    return bool(on.error) and event.form not in (LogForm.KERNEL, LogForm.COLLECTIVE) and not event.error.endswith("Warning")


def _xids(event: LogEvent, counts: float) -> list[Reading]:
    if event.form not in (LogForm.KERNEL, LogForm.LINE, LogForm.CUDA) and "xid" not in event.error.lower():
        return []
    xid = _XID.search(f"{event.error} {event.message}") or next((found for line in event.text if (found := _XID.search(line))), None)
    if xid is None:
        return []
    one = xid_of(int(xid[1]))
    cause = "gpu_nvlink" if xid[0].lower().startswith("sxid") else one.cause
    return [
        Reading(
            event=event, cause=cause, role=one.role, strength=SURE + 1.0 if one.role is Role.ROOT else FAIR, counts=0.0 if one.role is Role.NOTE else counts,
            signature=f"xid_{one.code}", source="NVIDIA Xid catalogue", permanence=one.permanence, scope=one.scope,
        )
    ]  # fmt: skip


def last_starts(digest: LogDigest) -> dict[str, int]:
    """Where the last run of each file starts. A start after which the log says nothing is none: a launcher announced what never came."""
    spoken: dict[str, int] = {}
    for path, line in (*((one.path, one.last_line) for one in digest.events if not one.warning), *((one.path, one.line) for one in digest.progress)):
        spoken[path] = max(spoken.get(path, 0), line)
    starts: dict[str, int] = {}
    for path, line in digest.started_lines:
        if line <= spoken.get(path, 0):
            starts[path] = max(starts.get(path, 0), line)
    return starts


def _counts(event: LogEvent, starts: dict[str, int]) -> float:
    if event.warning and not (event.form is LogForm.CUDA and event.error):
        return _WARNING
    if event.last_line < starts.get(event.path, 0):
        return _WARNING
    return _RECOVERED[min(event.progress_after, len(_RECOVERED) - 1)]


def _place(event: LogEvent) -> tuple[str, int]:
    return (event.path, event.first_line)


def _ordinary(digest: LogDigest, covered: dict[str, list[tuple[int, int]]]) -> dict[str, list[tuple[int, int | None]]]:
    """Lines at the end of each file in which nothing is wrong, with who wrote them. What is indented belongs to the line above."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    for line in digest.tail:
        if line.text[:1].strip() and not any(first <= line.line <= last for first, last in covered.get(line.path, ())):
            found.setdefault(line.path, []).append((line.line, line.rank))
    return found


def _survived(event: LogEvent, after: dict[str, list[tuple[int, int | None]]]) -> float:
    """A lone line that says error, and the same writer goes on: it was survived. A traceback that nobody caught is not asked."""
    if event.form not in (LogForm.LINE, LogForm.TENSORFLOW) and event.error != "NCCL WARN":
        return 1.0
    lines = sum(line > event.last_line and rank == event.rank for line, rank in after.get(event.path, ()))
    return _SURVIVED[min(lines, len(_SURVIVED) - 1)]


def _handled(events: Sequence[LogEvent]) -> set[tuple[str, int]]:
    """Exceptions that stand directly above the words that another one occurred while they were handled."""
    found: set[tuple[str, int]] = set()
    for one, between in pairwise(events):
        if one.form is LogForm.PYTHON and one.path == between.path and between.first_line - one.last_line <= 3 and _WHILE_HANDLING in between.message:
            found.add(_place(one))
    return found


def _first_progress(digest: LogDigest) -> dict[str, int]:
    first: dict[str, int] = {}
    for one in digest.progress:
        first[one.path] = min(first.get(one.path, one.line), one.line)
    return first


def _running(event: LogEvent, first: dict[str, int]) -> bool:
    """Whether a step had been made when it happened; of a file without progress, whether any other had some."""
    return first[event.path] <= event.first_line if event.path in first else bool(first) and len(first) > 1


def _tail_events(digest: LogDigest, covered: dict[str, list[tuple[int, int]]], starts: dict[str, int]) -> list[LogEvent]:
    """Lines at the end that no form was seen in: they may still say what happened, where nothing else does."""
    by_path: dict[str, list[LogEvent]] = {}
    for line in digest.tail:
        in_event = any(first <= line.line <= last for first, last in covered.get(line.path, ()))
        if in_event or line.line < starts.get(line.path, 0) or _SAID_AS_WARNING.search(line.text[:120]):
            continue
        event = LogEvent(
            form=LogForm.LINE, error="", message=line.text[:500], text=(line.text[:500],), path=line.path, first_line=line.line, last_line=line.line,
            rank=line.rank, node=line.node, at_s=line.at_s, times=line.times,
        )  # fmt: skip
        by_path.setdefault(line.path, []).append(event)
    last = max((one.line for one in digest.progress), default=0) if len(digest.paths) <= 1 else 0
    kept = [event for events in by_path.values() for event in events[-_TAIL_LINES:] if event.first_line >= last]
    return kept[-_TAIL_ALL:]
