"""An alert: what is sent about one incident, as it stands when it is sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.domain.finding import Severity

_SEVERITIES = tuple(Severity)


class AlertStatus(StrEnum):
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    fingerprint: str  # Of the incident: the same from its first sign to its end and across restarts of control, and unlike that of any other job's.
    job: str
    incident: int  # 0: it is about the end of the job, which no incident tells of.
    status: AlertStatus
    severity: Severity
    kind: str
    summary: str
    starts_at: float
    ends_at: float | None = None
    labels: dict[str, str] = field(default_factory=dict)  # For routes, groups and silences: job, kind, severity, node, rank, and those of the rule.
    evidence: tuple[str, ...] = ()
    given_up: bool = False  # The job ended on it: it fires until the job runs again.

    @property
    def id(self) -> str:
        return f"{self.job}/{self.incident or 'end'}"

    @property
    def fires(self) -> bool:
        return self.status is AlertStatus.FIRING

    @property
    def version(self) -> str:
        """Another one is news. Numbers in sentences change all the time, so sentences do not count."""
        told = (self.status, self.given_up, *(f"{name}={value}" for name, value in sorted(self.labels.items())))
        return hashlib.blake2b("\0".join(map(str, told)).encode(), digest_size=8).hexdigest()


def rank_of(severity: Severity) -> int:
    """How bad it is, as a number: larger is worse."""
    return _SEVERITIES.index(severity)
