"""Remembering: what of a job's state is worth keeping when the job is gone."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.diagnosis import TRAINING
from holdfast.domain.finding import Finding
from holdfast.domain.incident import FALSE_ALARM, Incident, IncidentPhase
from holdfast.domain.job import JobSpec
from holdfast.domain.past import PastIncident, PastRemedy

_TEXT_MAX, _EVIDENCE_MAX = 500, 8


def past_of(job: str, incident: Incident, runs: Sequence[tuple[float, JobSpec]] = ()) -> PastIncident:
    """`runs`: when each run of the job began, and how it was to be run. A job may be there to be struck in one and not in the next."""
    last = incident.diagnoses[-1] if incident.diagnoses else None
    finding = incident.findings[0] if incident.findings else None
    evidence = last.evidence if last is not None else finding.evidence if finding is not None else ()
    again = max(0, incident.step_before - incident.step_after) if min(incident.step_before, incident.step_after) >= 0 else 0
    return PastIncident(
        job=job, number=incident.id, opened_at=incident.opened_at, closed_at=incident.closed_at,
        cause=last.corrected or last.cause if last is not None else finding.kind if finding is not None else "",
        because=(last.because if last is not None else finding.because if finding is not None else "")[:_TEXT_MAX],
        fingerprint=last.fingerprint if last is not None else finding.kind if finding is not None else "",
        node=_node(incident), ranks=last.ranks if last is not None else finding.ranks if finding is not None else (),
        permanent=last.permanent if last is not None else False, confidence=last.confidence if last is not None else 0.0,
        outcome=_outcome(incident), stands=incident.stands, remedies=_remedies(incident), cost_s=sum(incident.costs.values()), steps_again=again,
        evidence=tuple(line[:_TEXT_MAX] for line in evidence[:_EVIDENCE_MAX]), learned=next((plan.learned for plan in reversed(incident.plans)), ""),
        chaos=next((spec.chaos for at, spec in reversed(runs) if at <= incident.opened_at), False),
    )  # fmt: skip


def _outcome(incident: Incident) -> str:
    if incident.is_open:
        return "open"
    if incident.outcome == FALSE_ALARM:
        return FALSE_ALARM
    return "resolved" if incident.phase is IncidentPhase.RESOLVED else "gave_up"


def _node(incident: Incident) -> str:
    """The node to blame: as diagnosed, else the one on which the culprit was found."""
    if incident.diagnoses and (incident.diagnoses[-1].node or incident.diagnoses[-1].cause in TRAINING):
        return incident.diagnoses[-1].node  # Whoever had a NaN first may have had it from the data: only a replay elsewhere accuses a node.
    blamed = set(incident.diagnoses[-1].ranks) if incident.diagnoses else set()

    def fits(finding: Finding) -> bool:
        return bool(finding.node) and (not blamed or bool(blamed & set(finding.ranks)))

    return next((finding.node for finding in incident.findings if fits(finding)), "")


def _remedies(incident: Incident) -> tuple[PastRemedy, ...]:
    """Every plan that was carried out but the last met another fault. The last one is counted when it is known what came of it: a job may end before. What
    each cost is the time from when it was begun with to when the next one was, or to the end."""
    done = incident.carried_out
    ends = [*(at for _, at in done[1:]), incident.closed_at if incident.closed_at is not None else done[-1][1]] if done else []
    found = []
    for (plan, at), end in zip(done, ends, strict=True):
        last = plan is incident.plans[-1]
        if not last or incident.outcome or incident.phase is IncidentPhase.GAVE_UP:
            worked = last and incident.outcome == "worked"
            found.append(PastRemedy(rung=plan.name, worked=worked, cost_s=max(0.0, end - at)))
    return tuple(found)
