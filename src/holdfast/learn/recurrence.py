"""Recurrence: a failure that was seen before, also in other jobs, and what helped then. In one sentence.

    this is the fourth time since Tuesday, in 2 jobs; a respawn helped 2 times of 3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.domain.past import PastIncident
from holdfast.learn.decay import DAY_S

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    times: int  # This one counted.
    jobs: int
    since: float
    helped: tuple[tuple[str, int, int], ...]  # Rung, how often training went on from it, how often it was tried.
    says: str


def seen_before(incident: PastIncident, past: Iterable[PastIncident]) -> Recurrence | None:
    """None for the first of its kind, and for what has no fingerprint. What was done on purpose says nothing of what comes by itself."""
    if not incident.fingerprint:
        return None
    alike = [one for one in past if one.fingerprint == incident.fingerprint and one.opened_at < incident.opened_at and one.stands == incident.stands]
    earlier = sorted((one for one in alike if one.id != incident.id and not one.chaos), key=lambda one: (one.opened_at, one.id))
    if not earlier:
        return None
    helped = _helped(earlier)
    since, jobs = earlier[0].opened_at, len({incident.job, *(one.job for one in earlier)})
    says = f"this is the {_ordinal(len(earlier) + 1)} time {_since(since, incident.opened_at)}" + (f", in {jobs} jobs" if jobs > 1 else "")
    if helped:
        says += "; " + ", ".join(_help(*one) for one in helped)
    return Recurrence(times=len(earlier) + 1, jobs=jobs, since=since, helped=helped, says=says)


def _helped(earlier: Sequence[PastIncident]) -> tuple[tuple[str, int, int], ...]:
    tried: dict[str, list[bool]] = {}
    for one in earlier:
        for remedy in one.remedies:
            tried.setdefault(remedy.rung, []).append(remedy.worked)
    return tuple((rung, sum(worked), len(worked)) for rung, worked in sorted(tried.items()))


def _help(rung: str, worked: int, tried: int) -> str:
    if tried == 1:
        return f"a {rung} helped then" if worked else f"a {rung} did not help then"
    return f"a {rung} helped {worked} times of {tried}" if worked else f"a {rung} helped none of {tried} times"


def _ordinal(number: int) -> str:
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"{number}th" if number % 100 in (11, 12, 13) else _ending(number)


def _ending(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _since(at: float, now: float) -> str:
    """A weekday within the last six days, else the date; all in UTC, so that two readers see the same."""
    day = datetime.fromtimestamp(at, UTC)
    days = int(now // DAY_S) - int(at // DAY_S)
    return "today" if days <= 0 else f"since {'yesterday' if days == 1 else f'{day:%A}' if days < 7 else f'{day:%Y-%m-%d}'}"
