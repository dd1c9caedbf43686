"""Incidents into alerts: what a stranger needs to know of one, in few words. Pure.

An incident that the job ended on fires until the job runs again: nothing is over then. So does an end that no incident tells of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.detect.rules.rule import Rule
from holdfast.diagnose.together import in_words, leading
from holdfast.domain.alert import Alert, AlertStatus, rank_of
from holdfast.domain.finding import Finding, Severity
from holdfast.domain.incident import Incident, IncidentPhase
from holdfast.domain.job import Outcome

BAD_ENDS = frozenset({Outcome.FAILED, Outcome.PERMANENT, Outcome.BROKEN})
_EVIDENCE_LINES = 8
_LINE_CHARS = 500
_RANKS_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What control knows at one moment, as far as alerts go."""

    at: float
    incidents: tuple[Incident, ...]  # Those that are open, or were when they were last looked at.
    outcome: Outcome | None = None
    because: str = ""
    end_untold: bool = False  # The job ended badly, and on none of its incidents.

    @property
    def ended_badly(self) -> bool:
        return self.outcome in BAD_ENDS


def alerts_of(seen: Seen, job: str, instance: str, rules: Mapping[str, Rule]) -> list[Alert]:
    """`rules` by the kind of finding they make. The alert about the end of the job is among them, fires or not."""
    made = [_alert(incident, seen, job, instance, rules) for incident in seen.incidents]
    untold = seen.end_untold
    end = Alert(
        fingerprint=_fingerprint(instance, job, 0), job=job, incident=0, kind="job_ended", severity=Severity.CRITICAL,
        status=AlertStatus.FIRING if untold else AlertStatus.RESOLVED, starts_at=seen.at, ends_at=None if untold else seen.at, given_up=untold,
        summary=_line(f"the job ended ({seen.outcome}): {seen.because}" if untold else "the job runs again"),
        labels={"job": job, "kind": "job_ended", "severity": Severity.CRITICAL.value},
    )  # fmt: skip
    return [*made, end]


def _alert(incident: Incident, seen: Seen, job: str, instance: str, rules: Mapping[str, Rule]) -> Alert:
    first = leading(incident.findings)
    given_up = incident.phase is IncidentPhase.GAVE_UP and seen.ended_badly
    fires = incident.is_open or given_up
    severity = Severity.CRITICAL if given_up else max((finding.severity for finding in incident.findings), key=rank_of)
    diagnosis = incident.diagnoses[-1] if incident.diagnoses else None
    summary = diagnosis.because if diagnosis is not None else in_words(incident.findings)
    if given_up:
        summary = f"the job ended on it ({seen.outcome}): {seen.because}"
    return Alert(
        fingerprint=_fingerprint(instance, job, incident.id), job=job, incident=incident.id, kind=first.kind, severity=severity, given_up=given_up,
        status=AlertStatus.FIRING if fires else AlertStatus.RESOLVED, summary=_line(summary), evidence=_evidence(incident),
        starts_at=incident.began_at, ends_at=None if fires else incident.closed_at or seen.at,
        labels=_labels(incident, first, job, severity, rules.get(first.kind)),
    )  # fmt: skip


def _labels(incident: Incident, first: Finding, job: str, severity: Severity, rule: Rule | None) -> dict[str, str]:
    diagnosis = incident.diagnoses[-1] if incident.diagnoses else None
    node = (diagnosis.node if diagnosis is not None else "") or first.node
    culprits = (diagnosis.ranks if diagnosis is not None else ()) or tuple(
        sorted({rank for finding in incident.findings if finding.kind == first.kind for rank in finding.ranks})
    )
    ranks = ",".join(map(str, culprits)) if len(culprits) <= _RANKS_NAMED else "several"
    cause = diagnosis.cause.value if diagnosis is not None else ""
    own = {**rule.labels, "route": rule.route} if rule is not None else {}
    labels = {
        **own, "job": job, "incident": str(incident.id), "kind": first.kind, "severity": severity.value, "node": node, "rank": ranks, "of": first.of,
        "cause": cause, "stands": "true" if incident.stands else "",
    }  # fmt: skip
    return {name: value for name, value in labels.items() if value}


def _evidence(incident: Incident) -> tuple[str, ...]:
    """What was found, what speaks for it, and what is done about it."""
    said = [finding.because for finding in incident.findings]
    said += [line for finding in incident.findings for line in finding.evidence]
    said += [f"{plan.name.replace('_', ' ')}: {plan.because}" for plan in incident.plans[-1:]]
    return tuple(dict.fromkeys(_line(line) for line in said))[:_EVIDENCE_LINES]


def _line(text: str) -> str:
    """One line without control characters: it goes into mails, chats and terminals."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return shown if len(shown) <= _LINE_CHARS else f"{shown[: _LINE_CHARS - 1]}…"


def _fingerprint(instance: str, job: str, incident: int) -> str:
    return hashlib.blake2b(f"{instance}/{job}/{incident}".encode(), digest_size=8).hexdigest()
