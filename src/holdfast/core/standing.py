"""Standing incidents: something is off and the gang runs on. The core asks here what to do with a finding that breaks nothing, and when it is over.

Any number may be open. What belongs together is one story; what flaps is the same story again; one that foretold a break is taken over by it. Works on the
core's state, which has one owner still: nobody else calls this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.diagnose.together import belongs
from holdfast.domain.event import FindingEnded
from holdfast.domain.finding import UNSAVED, Finding
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.state import State

CALM = "calm-"  # With the incident's number: the deadline at which one that has ended is closed.
STORY_LINES = 200  # What comes and goes for days is told this far.


def found(state: State, finding: Finding) -> None:
    """It joins the story it belongs to, or opens one of its own."""
    for incident in reversed(state.incidents):
        if incident.is_open and (belongs(finding, incident.findings) or not incident.stands):
            again = any(known.key == finding.key for known in incident.findings)
            ended = tuple(key for key in incident.ended if key != finding.key)
            if not again or len(incident.story) < STORY_LINES:
                incident = incident.tell(state.at, f"{'again' if again else 'and'}: {finding.because}")
            state.keep(replace(incident, findings=incident.findings if again else (*incident.findings, finding), ended=ended))
            state.deadlines.pop(f"{CALM}{incident.id}", None)
            return
    began_at = min(finding.since, state.at)
    incident = Incident(id=len(state.incidents) + 1, generation=state.generation, opened_at=state.at, began_at=began_at, findings=(finding,), stands=True)
    state.incidents.append(incident.tell(state.at, f"noticed: {finding.because}"))


def ended(state: State, event: FindingEnded, *, calm_s: float) -> None:
    """An incident is not closed at once when all of it has ended: what flaps is one story, not twenty."""
    for incident in state.incidents:
        if incident.is_open and event.key not in incident.ended and any(finding.key == event.key for finding in incident.findings):
            if len(incident.story) < STORY_LINES:
                incident = incident.tell(state.at, event.because)
            incident = replace(incident, ended=(*incident.ended, event.key))
            state.keep(incident)
            if incident.stands and incident.is_calm:
                state.deadlines[f"{CALM}{incident.id}"] = state.at + calm_s


def calmed(state: State, deadline: str, *, calm_s: float) -> None:
    """The deadline came, and nothing of it was seen again."""
    incident = state.incidents[int(deadline.removeprefix(CALM)) - 1]
    state.keep(incident.move(IncidentPhase.RESOLVED, at=state.at, because=f"nothing of it was seen for {calm_s:.0f} s"))


def leave_gang(state: State, because: str) -> None:
    """What stood beside a gang is over with it, and is found again beside the next if it is still so. What a rule says of the job lasts until it says so no
    longer: one condition is one incident, however often the gang is started meanwhile."""
    close_all(state, because, but=lambda incident: all(finding.is_of_rule for finding in incident.findings))


def close_all(state: State, because: str, *, but: Callable[[Incident], bool] = lambda incident: False) -> None:
    """Ends what stands. Saves that failed until the end are not made good by it."""
    for incident in [one for one in state.incidents if one.is_open and one.stands and not but(one)]:
        state.deadlines.pop(f"{CALM}{incident.id}", None)
        lost = any(finding.kind in UNSAVED and finding.key not in incident.ended for finding in incident.findings)
        to, how = (IncidentPhase.GAVE_UP, f"{because}, and saves failed until then") if lost else (IncidentPhase.RESOLVED, because)
        state.keep(incident.move(to, at=state.at, because=how))


def take_over(state: State, finding: Finding, began_at: float) -> Incident | None:
    """The one that has told of this break coming, if one did: its story goes on. Its bill begins now, since the gang ran until now."""
    assert state.gang is not None
    for incident in reversed(state.incidents):
        if incident.is_open and incident.stands and belongs(finding, incident.findings):
            state.deadlines.pop(f"{CALM}{incident.id}", None)
            judged, generation = len(incident.findings), state.gang.generation
            return replace(incident, stands=False, generation=generation, began_at=began_at, step_before=state.step, findings_judged=judged)
    return None
