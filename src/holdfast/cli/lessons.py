"""What earlier jobs have taught, as commands ask for it: what a job starts with, what was seen before, searches, corrections. Light: every run imports it."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.words import clean
from holdfast.control.past import Past, PastUnusable
from holdfast.diagnose.taxonomy import CLASSES, Scope
from holdfast.domain.incident import Incident
from holdfast.domain.job import JobSpec
from holdfast.domain.learned import Learned
from holdfast.domain.past import Correction, PastIncident
from holdfast.domain.resources import size
from holdfast.errors import UserError
from holdfast.launch.layout import past_database
from holdfast.learn.corrections import corrected, overrides, standing
from holdfast.learn.lessons import NODES_REACH_S, REMEDIES_REACH_S, THE_NODES, Lessons
from holdfast.learn.needs import peak_of
from holdfast.learn.recurrence import Recurrence, seen_before
from holdfast.learn.remembering import past_of

BY_FINGERPRINT = "fingerprint:"
_OF_NODES = THE_NODES | {name for name, one in CLASSES.items() if one.scope is Scope.NODE}


def lessons_in(root: Path, now: float) -> Lessons:
    with Past(past_database(root), read_only=True) as past:
        incidents, service = past.incidents(since=now - REMEDIES_REACH_S), past.service(since=now - NODES_REACH_S)
        return Lessons(incidents, service, past.runs(), past.corrections(), now, the_nodes=_OF_NODES)


def learned_for(root: Path, job: str) -> Learned | None:
    """What a job is started with. A history that cannot be read is said, and the job starts with nothing learned."""
    if not past_database(root).exists():
        return None
    try:
        return lessons_in(root, time.time()).learned(job)
    except PastUnusable as error:
        print(f"holdfast: nothing learned from earlier jobs is used: {error}", file=sys.stderr)
        return None


def peak_warning(root: Path, spec: JobSpec) -> str:
    """What earlier runs of the same command and shape say against a limit that was asked for; nothing where they do not."""
    limit = spec.resources.worker_memory_bytes
    if limit is None or not spec.argv:
        return ""
    try:
        with Past(past_database(root), read_only=True) as past:
            peak = peak_of(Path(spec.argv[0]).name, spec.shape, past.runs())
    except PastUnusable:
        return ""  # It is said by whoever reads the rest.
    if peak is None or peak.high_bytes <= limit:
        return ""
    between = f"{size(round(peak.low_bytes))} to {size(round(peak.high_bytes))} with 95 %"
    return f"a worker of it is expected to peak at {size(round(peak.bytes))} ({between}, from {peak.because}), and --memory-per-worker is {size(limit)}"


def before(root: Path, job: str, incident: Incident) -> Recurrence | None:
    """Whether the same was seen before, in this job or another. A history that cannot be read has nothing to say."""
    kept = past_of(job, incident)
    try:
        with Past(past_database(root), read_only=True) as past:
            return seen_before(kept, past.incidents(fingerprint=kept.fingerprint)) if kept.fingerprint else None
    except PastUnusable:
        return None


def seen_lines(seen: Recurrence | None) -> RenderableType:
    """The end of a story: that it is not the first of its kind."""
    return Group(Text("\nSeen before", style="bold"), Padding(Text(clean(seen.says)), (0, 0, 0, 2))) if seen is not None else Group()


def overrides_in(root: Path) -> dict[str, str]:
    """Fingerprint to class, as people corrected: for whoever diagnoses. A history that cannot be read is said, and nothing is corrected."""
    try:
        with Past(past_database(root), read_only=True) as past:
            return overrides(past.corrections())
    except PastUnusable as error:
        print(f"holdfast: what people corrected is not used: {error}", file=sys.stderr)
        return {}


# Searching.


def found(root: Path, *, cause: str, node: str, since: str, job: str, now: float) -> list[PastIncident]:
    """Newest first, each with the cause it has after what people said."""
    with Past(past_database(root), read_only=True) as past:
        kept = past.incidents(since=_since(since, now), node=node, job=job)
        holding = standing(past.corrections())
    named = [replace(one, cause=corrected(one, holding)) for one in kept]
    wanted = cause.removeprefix("rule:")
    chosen = [one for one in named if not cause or one.cause.removeprefix("rule:") == wanted]
    if cause and not chosen:
        _check_cause(cause, (one.cause for one in named))
    return chosen[::-1]


def _check_cause(cause: str, seen: Iterable[str]) -> None:
    """That nothing was found is an answer for a cause that exists; for one that does not, it would mislead."""
    known = {*CLASSES, *(one.removeprefix("rule:") for one in seen)}
    if cause.removeprefix("rule:") not in known:
        near = get_close_matches(cause, sorted(known), n=1, cutoff=0.5)
        raise UserError(f"there is no cause {cause!r}; " + (f"did you mean {near[0]!r}?" if near else "`holdfast learn report` lists those that were seen"))


def _since(text: str, now: float) -> float | None:
    if not text:
        return None
    from holdfast.cli.options import SECONDS, in_units

    try:
        return now - in_units(text, {**SECONDS, "w": 7 * SECONDS["d"]})
    except (ValueError, KeyError):
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UserError(f"--since is a time such as 12h, 7d or 2w, or a date such as 2026-11-10, not {text!r}") from None


# Corrections.


def correct(root: Path, incident: str, cause: str, because: str) -> Correction:
    if cause not in CLASSES:
        near = get_close_matches(cause, sorted(CLASSES), n=3, cutoff=0.4)
        raise UserError(f"there is no cause {cause!r}; " + (f"nearest: {', '.join(near)}" if near else f"there are {', '.join(sorted(CLASSES))}"))
    with Past(past_database(root)) as past:
        known = _incident(past, incident)
        if not known.fingerprint:
            raise UserError(f"incident {incident} left no fingerprint, so no later one could be told to be the same; nothing is changed")
        said = Correction(
            fingerprint=known.fingerprint, cause=cause, was=known.cause, incident=known.id if known.job else "", text=(known.because, *known.evidence),
            who=_who(), at=time.time(), because=because,
        )  # fmt: skip
        return past.correct(said)


def _incident(past: Past, name: str) -> PastIncident:
    if name.startswith(BY_FINGERPRINT):
        fingerprint = name.removeprefix(BY_FINGERPRINT)
        known = past.incidents(fingerprint=fingerprint)
        return known[-1] if known else PastIncident(job="", number=0, opened_at=time.time(), fingerprint=fingerprint)
    job, _, number = name.rpartition("/")
    found = past.incident(job, int(number)) if job and number.isdecimal() else None
    if found is not None:
        return found
    kept = past.incidents()
    near = get_close_matches(name, sorted({one.id for one in kept}), n=3, cutoff=0.4)
    shape = "an incident is named JOB/NUMBER, as `holdfast incidents` lists it"
    empty = "the history is empty; `holdfast learn rebuild` fills it from the jobs that are there"
    hint = f"nearest: {', '.join(near)}" if near else "`holdfast incidents` lists them" if kept else empty
    raise UserError(f"there is no incident {name!r}: {shape}; {hint}")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
