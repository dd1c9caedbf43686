"""Pauses that ended by themselves: how long they lasted is remembered by their place in the script, and a rank that was taken for hung there was not.

The core asks here; works on the core's state, which has one owner still.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from holdfast.detect.silent_rank import is_same_place
from holdfast.domain.event import FindingEnded
from holdfast.domain.incident import FALSE_ALARM, Incident
from holdfast.domain.state import State

PLACES: Final = 256  # A script that pauses in more places than this is not helped by remembering the short ones.


def ended(state: State, event: FindingEnded) -> None:
    """A rank went on by itself."""
    if not event.place:
        return
    state.pauses[event.place] = max(event.lasted_s, state.pauses.get(event.place, 0.0))
    if len(state.pauses) > PLACES:
        del state.pauses[min(state.pauses, key=lambda place: (state.pauses[place], place))]
    for incident in state.incidents:
        if incident.outcome != FALSE_ALARM and not incident.is_open and _struck_at(incident, event.place):
            said = f"false alarm: the same pause ended by itself after {event.lasted_s:.0f} s; nothing is learned from it"
            state.keep(replace(incident.tell(state.at, said), outcome=FALSE_ALARM))
            state.attempts = [one for one in state.attempts if not (incident.opened_at <= one.at <= (incident.closed_at or one.at))]


def struck(state: State) -> dict[str, float]:
    """Returns the places where a rank outside a collective was taken for hung, and how long it had not moved."""
    found: dict[str, float] = {}
    for incident in state.incidents:
        for finding in incident.findings:
            if finding.kind == "silent_rank" and finding.place and not incident.stands:
                found[finding.place] = max(finding.lasted_s, found.get(finding.place, 0.0))
    return found


def _struck_at(incident: Incident, place: str) -> bool:
    return not incident.stands and any(finding.kind == "silent_rank" and is_same_place(finding.place, place) for finding in incident.findings)
